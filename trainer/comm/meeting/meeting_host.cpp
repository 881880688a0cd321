#include "trainer/comm/meeting/meeting_host.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kPrefixDigits = 32;  // of the run's hash
constexpr int64_t kHelloWithinNs = 10 * kNsPerSecond;
constexpr size_t kGuestsMax = 64;  // peers that have not identified themselves
// Bounds the connections accepted per turn: foreign processes must not keep the host from ranks
// that have come.
constexpr int kAcceptsOfTurn = 1024;
constexpr int64_t kDeliverWithinNs = 20 * kNsPerSecond;  // to a rank that has stopped

uint64_t RandomWord(const Clock& clock) {
  uint64_t word = 0;
  if (getrandom(&word, sizeof word, 0) != sizeof word)
    word = static_cast<uint64_t>(clock.NowNs()) ^ static_cast<uint64_t>(getpid());
  return word;
}

}  // namespace

std::string MeetingPrefix(const ContentHash& run) {
  return "tidepool-meeting/" + HexOf(run).substr(0, kPrefixDigits) + "/";
}

Result<std::unique_ptr<MeetingHost>> MeetingHost::Open(const Rendezvous& meet) {
  UniqueFd listener =
      ListenAbstract(MeetingPrefix(meet.run) + std::to_string(RandomWord(*meet.clock)));
  if (!listener.valid()) {
    return Status(ErrorId::kCollectiveFailed, "no Unix socket for the meeting of the ranks")
        .Why(std::strerror(errno));
  }
  return std::unique_ptr<MeetingHost>(new MeetingHost(meet, std::move(listener)));
}

MeetingHost::MeetingHost(const Rendezvous& meet, UniqueFd listener)
    : own_{.rank = meet.rank, .world = meet.world, .run = meet.run, .subject = meet.spec},
      clock_(meet.clock),
      listener_(std::move(listener)),
      ranks_(meet.world) {}

MeetingHost::~MeetingHost() {
  if (refused_.total() == 0) return;
  LogWarn("connections to the meeting of the ranks were refused",
          {{"other_users", refused_.of_other_users},
           {"other_runs", refused_.of_other_runs},
           {"malformed", refused_.malformed}});
}

// Logs the first, the second, the fourth, and so on.
void MeetingHost::Count(uint64_t* counter, const char* why) {
  ++*counter;
  if (std::has_single_bit(*counter))
    LogWarn("a connection to the meeting of the ranks is refused",
            {{"why", why}, {"times", *counter}});
}

uint64_t MeetingHost::missing() const {
  uint64_t missing = 0;
  for (uint32_t rank = 1; rank < own_.world; ++rank)
    missing |= ranks_[rank].valid() ? 0 : uint64_t{1} << rank;
  return missing;
}

bool MeetingHost::Turn(int wait_ms) {
  std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) polled.push_back({guest.socket.get(), POLLIN, 0});
  // poll() ignores invalid descriptors.
  for (const UniqueFd& rank : ranks_) polled.push_back({rank.get(), POLLIN, 0});
  poll(polled.data(), polled.size(), wait_ms);

  const uint64_t before = missing();
  AcceptAll();
  std::erase_if(guests_, [this](Guest& guest) { return !Hear(&guest); });
  DropTheDead();
  if (missing() != before) TellMissing();
  return missing() == 0;
}

void MeetingHost::AcceptAll() {
  for (int i = 0; i < kAcceptsOfTurn; ++i) {
    UniqueFd peer = AcceptPeer(listener_.get());
    if (!peer.valid()) return;
    if (!OwnedByUs(peer.get())) {
      Count(&refused_.of_other_users, "another user's process");
      continue;
    }

    if (guests_.size() == kGuestsMax) {
      Count(&refused_.malformed, "too many that do not say who they are");
      continue;
    }
    guests_.push_back({std::move(peer), clock_->NowNs()});
  }
}

bool MeetingHost::Hear(Guest* guest) {
  std::array<std::byte, kMeetingPacketBytes> bytes;
  UniqueFd ignored;
  const PacketResult result = ReceivePacket(guest->socket.get(), bytes, &ignored);
  if (result == PacketResult::kWouldBlock) {
    if (clock_->NowNs() - guest->since_ns < kHelloWithinNs) return true;
    Count(&refused_.malformed, "it does not say who it is");
    return false;
  }

  const auto hello = result == PacketResult::kDone ? DecodeMeetingPacket(bytes) : std::nullopt;
  if (!hello) {
    Count(&refused_.malformed, result == PacketResult::kClosed ? "it left without a word"
                                                               : "it does not speak this protocol");
    return false;
  }

  MeetingPacket::Verdict verdict = JudgeHello(own_, *hello);
  if (verdict == MeetingPacket::Verdict::kWelcome) {
    // The previous process of this rank may have died since.
    DropTheDead();
    if (ranks_[hello->rank].valid()) verdict = MeetingPacket::Verdict::kRankTaken;
  }
  if (verdict == MeetingPacket::Verdict::kWelcome) {
    ranks_[hello->rank] = std::move(guest->socket);
  } else {
    Refuse(guest->socket.get(), verdict);
  }
  return false;
}

void MeetingHost::Refuse(int socket, MeetingPacket::Verdict verdict) {
  switch (verdict) {
    case MeetingPacket::Verdict::kOtherSpec:
      Count(&refused_.of_other_runs, "a rank with another specification");
      break;
    case MeetingPacket::Verdict::kRankTaken:
      Count(&refused_.of_other_runs, "another process is that rank");
      break;
    default: Count(&refused_.of_other_runs, "a rank of another run"); break;
  }

  MeetingPacket answer = own_;
  answer.kind = MeetingPacket::Kind::kRefused;
  answer.verdict = verdict;
  answer.missing = missing();
  static_cast<void>(SendPacket(socket, Encode(answer)));
}

// A waiting rank sends nothing: if its socket is readable, the rank has ended.
void MeetingHost::DropTheDead() {
  for (UniqueFd& rank : ranks_) {
    std::array<std::byte, kMeetingPacketBytes> bytes;
    UniqueFd ignored;
    if (rank.valid() && ReceivePacket(rank.get(), bytes, &ignored) != PacketResult::kWouldBlock)
      rank.Reset();
  }
}

void MeetingHost::TellMissing() {
  MeetingPacket packet = own_;
  packet.kind = MeetingPacket::Kind::kWaiting;
  packet.missing = missing();
  for (const UniqueFd& rank : ranks_) {
    if (rank.valid()) static_cast<void>(SendPacket(rank.get(), Encode(packet)));
  }
}

bool MeetingHost::Deliver(uint32_t to, const MeetingPacket& packet, int fd) {
  const int64_t end_ns = clock_->NowNs() + kDeliverWithinNs;
  for (;;) {
    const PacketResult result = SendPacket(ranks_[to].get(), Encode(packet), fd);
    if (result == PacketResult::kDone) return true;
    if (result != PacketResult::kWouldBlock || clock_->NowNs() > end_ns) return false;
    // Its socket is full, or too many descriptors are in flight; both clear when ranks read.
    clock_->SleepNs(kNsPerMs);
  }
}

bool MeetingHost::Introduce() {
  const auto connect = [this]() {
    MeetingPacket packet = own_;
    packet.kind = MeetingPacket::Kind::kPeer;

    for (uint32_t low = 1; low < own_.world; ++low) {
      for (uint32_t high = low + 1; high < own_.world; ++high) {
        const SocketPair pair = MakePair(SOCK_SEQPACKET);
        packet.rank = high;
        if (!pair.ours.valid() || !Deliver(low, packet, pair.ours.get())) return false;
        packet.rank = low;
        if (!Deliver(high, packet, pair.theirs.get())) return false;
      }
    }
    return true;
  };

  if (!connect()) {
    for (UniqueFd& rank : ranks_) rank.Reset();
    return false;
  }

  MeetingPacket packet = own_;
  packet.kind = MeetingPacket::Kind::kAllHere;
  // A rank that dies after this point has met the others: the first group notices its absence.
  for (uint32_t rank = 1; rank < own_.world; ++rank) static_cast<void>(Deliver(rank, packet, -1));
  return true;
}

std::vector<UniqueFd> MeetingHost::TakePeers() {
  return std::exchange(ranks_, std::vector<UniqueFd>(own_.world));
}

}  // namespace tidepool::trainer
