#include "trainer/comm/meeting/local_meeting.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "trainer/comm/socket_collective.h"
#include "trainer/comm/solo_collective.h"

namespace tidepool::trainer {
namespace {

// Interval of asking whether to go on waiting.
constexpr int kSliceMs = 50;
constexpr int64_t kAnswerWithinNs = 10 * kNsPerSecond;  // for an answer of a listening peer

enum class Heard { kPacket, kNothing, kEnd };

// Waits one slice for a packet. kEnd: the peer is gone, or does not speak our protocol.
Heard Hear(int socket, MeetingPacket* packet, UniqueFd* fd) {
  pollfd polled{.fd = socket, .events = POLLIN, .revents = 0};
  poll(&polled, 1, kSliceMs);

  std::array<std::byte, kMeetingPacketBytes> bytes;
  const PacketResult result = ReceivePacket(socket, bytes, fd);
  if (result == PacketResult::kWouldBlock) return Heard::kNothing;
  const auto decoded = result == PacketResult::kDone ? DecodeMeetingPacket(bytes) : std::nullopt;
  if (!decoded) return Heard::kEnd;
  *packet = *decoded;
  return Heard::kPacket;
}

std::vector<uint32_t> RanksIn(uint64_t mask) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < kRanksOfMachineMax; ++rank) {
    if ((mask >> rank & 1) != 0) ranks.push_back(rank);
  }
  return ranks;
}

// Mask of all ranks of a run of `world` except rank 0 and `rank`.
uint64_t OthersThan(uint32_t rank, uint32_t world) {
  const uint64_t all = world == kRanksOfMachineMax ? ~uint64_t{0} : (uint64_t{1} << world) - 1;
  return all & ~uint64_t{1} & ~(uint64_t{1} << rank);
}

}  // namespace

// The state of a rank that looks for rank 0.
struct LocalMeeting::Search {
  Patience patience;
  Patience turned_away;     // by rank 0, which lives: its signs of life do not extend this wait
  uint64_t missing = 1;     // rank 0, until it names others
  bool rank_taken = false;  // another process has come as this rank
  bool is_over = false;     // this connection will bring nothing more
  bool all_here = false;
};

Patience::Terms LocalMeeting::WaitTerms() const {
  Patience::Terms terms{.world = meet_.world, .limit_ns = meet_.GatherLimitMs() * kNsPerMs};
  terms.doing = "meeting the other ranks failed on rank " + std::to_string(meet_.rank) + " of " +
                std::to_string(meet_.world);
  terms.standing = meet_.standing;
  terms.say = meet_.say;
  return terms;
}

Status LocalMeeting::Gather() {
  if (meet_.world == 1) return {};
  if (meet_.world > kRanksOfMachineMax) {
    return Status(ErrorId::kUsageError,
                  std::to_string(meet_.world) + " ranks are more than one machine can have")
        .Fix("start at most " + std::to_string(kRanksOfMachineMax));
  }
  Disband();
  return meet_.rank == 0 ? Host() : Join();
}

Status LocalMeeting::Host() {
  Patience patience(WaitTerms(), clock_->NowNs());
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<MeetingHost> host, MeetingHost::Open(meet_));

  Status ended;
  while (!host->Turn(kSliceMs) || !host->Introduce()) {
    const int64_t now_ns = clock_->NowNs();
    const uint64_t missing = host->missing();
    for (uint32_t rank = 1; rank < meet_.world; ++rank) {
      if ((missing >> rank & 1) == 0) patience.Heard(rank, now_ns);
    }
    ended = Interrupted();
    if (ended.ok()) ended = patience.Wait(RanksIn(missing), now_ns);
    if (!ended.ok()) break;
  }

  refused_.of_other_users += host->refused().of_other_users;
  refused_.of_other_runs += host->refused().of_other_runs;
  refused_.malformed += host->refused().malformed;
  if (ended.ok()) peers_ = host->TakePeers();
  return ended;
}

Status LocalMeeting::Join() {
  const int64_t now_ns = clock_->NowNs();
  Patience::Terms uninformed = WaitTerms();
  uninformed.standing = nullptr;
  uninformed.say = nullptr;
  Search search{.patience = Patience(WaitTerms(), now_ns),
                .turned_away = Patience(std::move(uninformed), now_ns)};

  for (;;) {
    search.missing |= 1;
    for (const std::string& name : FindListening(MeetingPrefix(meet_.run))) {
      TP_RETURN_IF_ERROR(TryOne(name, &search));
      if (search.all_here) return {};
    }
    TP_RETURN_IF_ERROR(Interrupted());
    TP_RETURN_IF_ERROR(GoOn(&search, /*is_connected=*/false));
    clock_->SleepNs(kSliceMs * kNsPerMs);
  }
}

// While connected, rank 0 says who is missing and tells the user. Signs of other ranks from before
// it went away say nothing about them now.
Status LocalMeeting::GoOn(Search* search, bool is_connected) {
  const int64_t now_ns = clock_->NowNs();
  const uint64_t others = search->missing & ~uint64_t{1};
  for (uint32_t rank = 1; is_connected && rank < meet_.world; ++rank) {
    if ((others >> rank & 1) == 0) search->patience.Heard(rank, now_ns);
  }

  const bool for_rank_0 = !is_connected || others == 0;
  const auto telling = for_rank_0 ? Patience::Telling::kYes : Patience::Telling::kNo;
  if (!search->rank_taken) search->turned_away.Heard(0, now_ns);
  Patience& patience = search->rank_taken ? search->turned_away : search->patience;
  Status goes_on =
      patience.Wait(for_rank_0 ? std::vector<uint32_t>{0} : RanksIn(others), now_ns, telling);
  if (goes_on.ok()) return {};

  if (search->rank_taken) {
    return std::move(goes_on).Why("rank 0 says that another process is rank " +
                                  std::to_string(meet_.rank) + " of this run");
  }
  if (is_connected || others == 0) return goes_on;
  const std::string why = goes_on.why() + "; it had missed " + NamesOfRanks(RanksIn(others));
  return std::move(goes_on).Why(why);
}

// Also returns ok if the peer was not this run's rank 0: the next name is tried.
Status LocalMeeting::TryOne(const std::string& name, Search* search) {
  const UniqueFd found = ConnectAbstract(name);
  if (!found.valid() || !OwnedByUs(found.get())) return {};
  MeetingPacket hello{
      .rank = meet_.rank, .world = meet_.world, .run = meet_.run, .subject = meet_.spec};
  if (SendPacket(found.get(), Encode(hello)) != PacketResult::kDone) return {};

  TP_RETURN_IF_ERROR(Listen(found.get(), search));
  if (search->all_here) {
    peers_[0] = Duplicate(found.get());
    return {};
  }
  Disband();  // drops connections of a failed meeting
  return {};
}

// Listens to rank 0 until all ranks are here or this meeting fails.
Status LocalMeeting::Listen(int socket, Search* search) {
  const int64_t answer_by_ns = clock_->NowNs() + kAnswerWithinNs;
  bool is_answered = false;
  search->is_over = false;
  while (!search->is_over) {
    MeetingPacket packet;
    UniqueFd fd;
    const Heard heard = Hear(socket, &packet, &fd);
    TP_RETURN_IF_ERROR(Interrupted());

    if (heard == Heard::kPacket && packet.kind == MeetingPacket::Kind::kRefused)
      return Refused(packet, search);
    const int64_t now_ns = clock_->NowNs();
    if (heard == Heard::kPacket && !std::exchange(is_answered, true)) {
      // How long these ranks have been missing is unknown, so their limits start anew.
      for (uint32_t rank = 0; rank < meet_.world; ++rank) search->patience.Heard(rank, now_ns);
    }
    // Rank 0 lived until its connection ended.
    if (is_answered && heard != Heard::kNothing) search->patience.Heard(0, now_ns);
    if (heard == Heard::kEnd || (!is_answered && now_ns > answer_by_ns)) return {};
    if (heard == Heard::kPacket) Take(packet, std::move(fd), search);
    if (!search->is_over) TP_RETURN_IF_ERROR(GoOn(search, is_answered));
  }
  return {};
}

// Handles a packet of rank 0 to a rank that it has admitted.
void LocalMeeting::Take(MeetingPacket packet, UniqueFd fd, Search* search) {
  switch (packet.kind) {
    case MeetingPacket::Kind::kWaiting:
      search->missing = packet.missing & OthersThan(meet_.rank, meet_.world);
      search->rank_taken = false;
      return;

    case MeetingPacket::Kind::kPeer:
      search->is_over = !fd.valid() || packet.rank == meet_.rank || packet.rank >= meet_.world;
      if (!search->is_over) peers_[packet.rank] = std::move(fd);
      return;

    case MeetingPacket::Kind::kAllHere:
      search->all_here = true;
      for (uint32_t rank = 1; rank < meet_.world; ++rank) {
        if (rank != meet_.rank && !peers_[rank].valid()) search->all_here = false;
      }
      search->is_over = true;
      return;
    default: search->is_over = true; return;
  }
}

Status LocalMeeting::Refused(const MeetingPacket& packet, Search* search) const {
  search->rank_taken = packet.verdict == MeetingPacket::Verdict::kRankTaken;
  if (packet.verdict != MeetingPacket::Verdict::kOtherSpec) return {};
  return Status(ErrorId::kJobMismatch,
                "rank 0 of this run trains something else than rank " + std::to_string(meet_.rank))
      .Why(
          "their specifications differ: model, data, sizes or other options that all ranks must "
          "share")
      .Fix("start all ranks with the same command line");
}

void LocalMeeting::Disband() {
  for (UniqueFd& peer : peers_) peer.Reset();
}

Status LocalMeeting::PeerLeft(uint32_t rank, const char* how) const {
  return Status(ErrorId::kCollectiveFailed, "making a group failed on rank " +
                                                std::to_string(meet_.rank) + " of " +
                                                std::to_string(meet_.world))
      .Why("rank " + std::to_string(rank) + " " + how);
}

// Makes a connection and sends its other end to rank `to`.
Result<UniqueFd> LocalMeeting::OfferConnection(uint32_t to, const MeetingPacket& packet) {
  SocketPair pair = MakePair(SOCK_STREAM);
  if (!pair.ours.valid())
    return Status(ErrorId::kCollectiveFailed, "no socket for a group of ranks")
        .Why("no descriptor is left")
        .Fix("raise `ulimit -n`");

  const int64_t end_ns = clock_->NowNs() + meet_.timeout_ms * kNsPerMs;
  for (;;) {
    const PacketResult result = SendPacket(peers_[to].get(), Encode(packet), pair.theirs.get());
    if (result == PacketResult::kDone) return std::move(pair.ours);
    if (result != PacketResult::kWouldBlock) return PeerLeft(to, "has left");
    TP_RETURN_IF_ERROR(Interrupted());
    if (clock_->NowNs() > end_ns) return PeerLeft(to, "takes no connection");
    clock_->SleepNs(kNsPerMs);
  }
}

Result<UniqueFd> LocalMeeting::AwaitConnection(uint32_t from, const MeetingPacket& packet) {
  const int64_t end_ns = clock_->NowNs() + meet_.timeout_ms * kNsPerMs;
  for (;;) {
    MeetingPacket got;
    UniqueFd fd;
    const Heard heard = peers_[from].valid() ? Hear(peers_[from].get(), &got, &fd) : Heard::kEnd;
    if (heard == Heard::kEnd) return PeerLeft(from, "has left");

    if (heard == Heard::kPacket) {
      if (got.kind == packet.kind && got.rank == from && got.subject == packet.subject &&
          fd.valid())
        return fd;
      return PeerLeft(from, "makes another group");
    }
    TP_RETURN_IF_ERROR(Interrupted());
    if (clock_->NowNs() > end_ns) return PeerLeft(from, "did not come to it in time");
  }
}

Result<SocketGroup> LocalMeeting::Connect(const GroupSpec& spec) {
  const auto position = std::find(spec.ranks.begin(), spec.ranks.end(), meet_.rank);
  TP_CHECK(position != spec.ranks.end(), "this rank is a member of the group that it makes");
  MeetingPacket packet{.kind = MeetingPacket::Kind::kGroup,
                       .rank = meet_.rank,
                       .world = meet_.world,
                       .run = meet_.run,
                       .subject = HashOf(std::as_bytes(std::span(spec.name)))};

  std::vector<UniqueFd> members(spec.ranks.size());
  for (size_t i = 0; i < spec.ranks.size(); ++i) {
    if (spec.ranks[i] <= meet_.rank) continue;
    TP_ASSIGN_OR_RETURN(members[i], OfferConnection(spec.ranks[i], packet));
  }
  for (size_t i = 0; i < spec.ranks.size(); ++i) {
    if (spec.ranks[i] >= meet_.rank) continue;
    TP_ASSIGN_OR_RETURN(members[i], AwaitConnection(spec.ranks[i], packet));
  }

  return SocketGroup{.name = spec.name,
                     .rank = static_cast<uint32_t>(position - spec.ranks.begin()),
                     .members = std::move(members),
                     .clock = clock_,
                     .timeout_ms = meet_.timeout_ms,
                     .doomed = meet_.doomed};
}

Result<std::unique_ptr<Collective>> LocalMeeting::MakeGroup(const GroupSpec& spec) {
  if (spec.ranks == std::vector<uint32_t>{meet_.rank})
    return std::unique_ptr<Collective>(std::make_unique<SoloCollective>());
  TP_ASSIGN_OR_RETURN(SocketGroup connected, Connect(spec));
  auto group = std::make_unique<SocketCollective>(std::move(connected));
  TP_RETURN_IF_ERROR(group->Barrier());
  return std::unique_ptr<Collective>(std::move(group));
}

Result<std::unique_ptr<RankLink>> LocalMeeting::MakeLink(const LinkSpec& spec) {
  const GroupSpec pair{spec.name, {std::min(spec.from, spec.to), std::max(spec.from, spec.to)}};
  TP_ASSIGN_OR_RETURN(SocketGroup connected, Connect(pair));
  const uint32_t peer = 1 - connected.rank;
  return std::make_unique<RankLink>(std::move(connected), peer, spec.from == meet_.rank);
}

}  // namespace tidepool::trainer
