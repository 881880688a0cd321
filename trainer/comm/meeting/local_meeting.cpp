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

// Between two questions whether to go on waiting.
constexpr int kSliceMs = 50;
constexpr int64_t kAnswerWithinNs = 10 * kNsPerSecond;  // of somebody who listens

enum class Heard { kPacket, kNothing, kEnd };

// Waits a slice for a packet. kEnd: the peer is gone, or does not speak our protocol.
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

std::string RanksIn(uint64_t mask) {
  std::string names;
  for (uint32_t rank = 0; rank < kRanksOfMachineMax; ++rank) {
    if ((mask >> rank & 1) != 0) names += (names.empty() ? "rank " : ", ") + std::to_string(rank);
  }
  return names;
}

}  // namespace

// What a rank that looks for rank 0 knows.
struct LocalMeeting::Search {
  int64_t end_ns = 0;
  uint64_t missing = 1;     // rank 0, until it tells of others
  bool rank_taken = false;  // somebody else has come as this rank
  bool all_here = false;
};

Status LocalMeeting::Missing(uint64_t missing, int64_t limit_ms) const {
  const std::string doing = "meeting the other ranks failed on rank " + std::to_string(meet_.rank) +
                            " of " + std::to_string(meet_.world);
  return Status(ErrorId::kRanksMissing, doing + ": " + RanksIn(missing) + " did not come")
      .Why("not within " + FormatDuration(static_cast<double>(limit_ms) * 1e-3));
}

Status LocalMeeting::Gather() {
  if (meet_.world == 1) return {};
  if (meet_.world > kRanksOfMachineMax) {
    return Status(ErrorId::kUsageError,
                  std::to_string(meet_.world) + " ranks are more than one machine can have")
        .Fix("start at most " + std::to_string(kRanksOfMachineMax));
  }
  Disband();
  const int64_t limit_ms = meet_.gather_timeout_ms > 0 ? meet_.gather_timeout_ms : meet_.timeout_ms;
  const int64_t end_ns = clock_.NowNs() + limit_ms * kNsPerMs;
  return meet_.rank == 0 ? Host(end_ns) : Join(end_ns);
}

Status LocalMeeting::Host(int64_t end_ns) {
  const int64_t begin_ns = clock_.NowNs();
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<MeetingHost> host, MeetingHost::Open(meet_));
  Status ended;
  while (!host->Turn(kSliceMs) || !host->Introduce()) {
    ended = Interrupted();
    if (ended.ok() && clock_.NowNs() > end_ns)
      ended = Missing(host->missing(), (end_ns - begin_ns) / kNsPerMs);
    if (!ended.ok()) break;
  }
  refused_.of_other_users += host->refused().of_other_users;
  refused_.of_other_runs += host->refused().of_other_runs;
  refused_.malformed += host->refused().malformed;
  if (ended.ok()) peers_ = host->TakePeers();
  return ended;
}

Status LocalMeeting::Join(int64_t end_ns) {
  const int64_t begin_ns = clock_.NowNs();
  Search search{.end_ns = end_ns};
  for (;;) {
    search.missing |= 1;
    for (const std::string& name : FindListening(MeetingPrefix(meet_.run))) {
      TP_RETURN_IF_ERROR(TryOne(name, &search));
      if (search.all_here) return {};
    }
    TP_RETURN_IF_ERROR(Interrupted());
    if (clock_.NowNs() > end_ns) break;
    clock_.SleepNs(kSliceMs * kNsPerMs);
  }
  Status missing = Missing(search.missing, (end_ns - begin_ns) / kNsPerMs);
  if (!search.rank_taken) return missing;
  return std::move(missing).Why("rank 0 says that another process is rank " +
                                std::to_string(meet_.rank) + " of this run");
}

// Ok also where nothing came of it: the next one is tried.
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
  Disband();  // connections to others, of a meeting that came to nothing
  return {};
}

// Until all are here, or this meeting comes to nothing.
Status LocalMeeting::Listen(int socket, Search* search) {
  int64_t answer_by_ns = clock_.NowNs() + kAnswerWithinNs;
  for (;;) {
    MeetingPacket packet;
    UniqueFd fd;
    const Heard heard = Hear(socket, &packet, &fd);
    TP_RETURN_IF_ERROR(Interrupted());
    if (heard == Heard::kEnd || clock_.NowNs() > std::min(search->end_ns, answer_by_ns)) return {};
    if (heard == Heard::kNothing) continue;

    answer_by_ns = search->end_ns;
    switch (packet.kind) {
      case MeetingPacket::Kind::kWaiting: search->missing = packet.missing; break;
      case MeetingPacket::Kind::kPeer:
        if (!fd.valid() || packet.rank == meet_.rank || packet.rank >= meet_.world) return {};
        peers_[packet.rank] = std::move(fd);
        break;
      case MeetingPacket::Kind::kAllHere:
        for (uint32_t rank = 1; rank < meet_.world; ++rank) {
          if (rank != meet_.rank && !peers_[rank].valid()) return {};
        }
        search->all_here = true;
        return {};
      case MeetingPacket::Kind::kRefused:
        search->rank_taken = packet.verdict == MeetingPacket::Verdict::kRankTaken;
        if (packet.verdict != MeetingPacket::Verdict::kOtherSpec) return {};
        return Status(ErrorId::kJobMismatch, "rank 0 of this run trains something else than rank " +
                                                 std::to_string(meet_.rank))
            .Why(
                "their specifications differ: model, data, sizes or other options that all ranks "
                "must share")
            .Fix("start all ranks with the same command line");
      default: return {};
    }
  }
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

// A new connection, whose other end goes to `to`.
Result<UniqueFd> LocalMeeting::OfferConnection(uint32_t to, const MeetingPacket& packet) {
  SocketPair pair = MakePair(SOCK_STREAM);
  if (!pair.ours.valid())
    return Status(ErrorId::kCollectiveFailed, "no socket for a group of ranks")
        .Why("no descriptor is left")
        .Fix("raise `ulimit -n`");
  const int64_t end_ns = clock_.NowNs() + meet_.timeout_ms * kNsPerMs;
  for (;;) {
    const PacketResult result = SendPacket(peers_[to].get(), Encode(packet), pair.theirs.get());
    if (result == PacketResult::kDone) return std::move(pair.ours);
    if (result != PacketResult::kWouldBlock) return PeerLeft(to, "has left");
    TP_RETURN_IF_ERROR(Interrupted());
    if (clock_.NowNs() > end_ns) return PeerLeft(to, "takes no connection");
    clock_.SleepNs(kNsPerMs);
  }
}

Result<UniqueFd> LocalMeeting::AwaitConnection(uint32_t from, const MeetingPacket& packet) {
  const int64_t end_ns = clock_.NowNs() + meet_.timeout_ms * kNsPerMs;
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
    if (clock_.NowNs() > end_ns) return PeerLeft(from, "did not come to it in time");
  }
}

Result<std::unique_ptr<Collective>> LocalMeeting::MakeGroup(const GroupSpec& spec) {
  const auto position = std::find(spec.ranks.begin(), spec.ranks.end(), meet_.rank);
  TP_CHECK(position != spec.ranks.end(), "this rank is a member of the group that it makes");
  if (spec.ranks.size() == 1)
    return std::unique_ptr<Collective>(std::make_unique<SoloCollective>());

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

  auto group = std::make_unique<SocketCollective>(
      SocketGroup{.name = spec.name,
                  .rank = static_cast<uint32_t>(position - spec.ranks.begin()),
                  .members = std::move(members),
                  .timeout_ms = meet_.timeout_ms,
                  .doomed = meet_.doomed});
  TP_RETURN_IF_ERROR(group->Barrier());
  return std::unique_ptr<Collective>(std::move(group));
}

}  // namespace tidepool::trainer
