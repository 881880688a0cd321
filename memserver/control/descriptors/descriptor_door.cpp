#include "memserver/control/descriptors/descriptor_door.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/planted.h"

namespace tidepool::memserver {

namespace {

struct ChannelEnds {
  UniqueFd own, other;
};
ChannelEnds MakeChannel() {
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return {};
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// The memory from which the kernel reads this process's command line (fields 48 and 49 of
// /proc/self/stat).
std::span<char> CommandLine() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line, '\0');
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 48; ++field) fields >> skipped;
  uintptr_t begin = 0, end = 0;
  if (!(fields >> begin >> end) || begin == 0 || end < begin) return {};
  return {reinterpret_cast<char*>(begin), end - begin};
}

shm::SocketResult ResultOf(LaneWord word) {
  switch (word) {
    case LaneWord::kTaken:
    case LaneWord::kRefused:
    case LaneWord::kClosed: return shm::SocketResult::kDone;
    case LaneWord::kNone: return shm::SocketResult::kWouldBlock;
    case LaneWord::kGone: return shm::SocketResult::kClosed;
    case LaneWord::kMalformed: break;
  }
  return shm::SocketResult::kMalformed;
}

Status WrongKind(LaneTask task) {
  if (task == LaneTask::kTakeDirectory) {
    return Status(ErrorId::kProtocolViolation,
                  "the descriptor sent with Save is not an O_PATH descriptor of a directory");
  }
  return Status(
      ErrorId::kHandshakeBad,
      "a descriptor came that memserver does not take: it is not a memfd, nor memory of a GPU");
}

}  // namespace

Result<std::unique_ptr<DescriptorDoor>> DescriptorDoor::Open(const Clock* clock) {
  std::unique_ptr<DescriptorDoor> door(new DescriptorDoor(clock));
  door->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (door->epoll_.valid() && door->ForkMaker()) return door;
  return Status(ErrorId::kSocketFailed,
                "no process can be made that takes descriptors from clients")
      .Why(std::strerror(errno));
}

DescriptorDoor::Lane::~Lane() {
  shutdown(channel.get(), SHUT_RDWR);
}

DescriptorDoor::~DescriptorDoor() {
  lanes_.clear();
  shutdown(maker_.get(), SHUT_RDWR);
  if (maker_pid_ > 0) waitpid(maker_pid_, nullptr, 0);
}

bool DescriptorDoor::ForkMaker() {
  if (maker_pid_ > 0) waitpid(maker_pid_, nullptr, 0);  // it was killed from outside
  ChannelEnds ends = MakeChannel();
  if (!ends.own.valid()) return false;
  maker_pid_ = ForkLaneMaker(ends.other.get(), CommandLine());
  maker_ = std::move(ends.own);
  return maker_pid_ > 0;
}

DescriptorDoor::Lane* DescriptorDoor::MakeLane(uint32_t uid) {
  ChannelEnds ends = MakeChannel();
  if (!ends.own.valid()) return nullptr;
  const std::array<std::byte, 1> word{};
  const std::array<int, 1> fds{ends.other.get()};
  auto sent = shm::SendPacket(maker_.get(), word, fds);
  if (sent == shm::SocketResult::kClosed) {
    LogError("the process that takes descriptors was killed; another one is started");
    if (ForkMaker()) sent = shm::SendPacket(maker_.get(), word, fds);
  }
  if (sent != shm::SocketResult::kDone) return nullptr;

  const uint64_t number = ++last_number_;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, ends.own.get(), &event) != 0) return nullptr;
  return &lanes_.try_emplace(number, uid, std::move(ends.own)).first->second;
}

DescriptorDoor::Lane* DescriptorDoor::LaneFor(uint32_t uid) {
  const int64_t now = clock_->NowNs();
  Lane* least = nullptr;
  uint32_t of_user = 0;
  for (auto& [number, lane] : lanes_) {
    if (lane.uid != uid) continue;
    ++of_user;
    if (lane.asked.empty() || TP_PLANTED("jobs.stuck_lane_used")) return &lane;
    const bool stuck = now - lane.asked.front().since_ns >= kStuckNs || lane.asked.front().answered;
    if (!stuck && (least == nullptr || lane.asked.size() < least->asked.size())) least = &lane;
  }

  const bool room = of_user < kLanesPerUser && lanes_.size() < kLanesMax;
  Lane* const made = room ? MakeLane(uid) : nullptr;
  return made != nullptr ? made : least;
}

Status DescriptorDoor::Take(const Ask& ask) {
  Lane* const lane = LaneFor(ask.uid);
  const LaneAsk asked{ask.connection, ask.task, ask.fds_max};
  const std::array<int, 1> fds{ask.socket};
  const bool sent =
      lane != nullptr && shm::SendPacket(lane->channel.get(), std::as_bytes(std::span(&asked, 1)),
                                         fds) == shm::SocketResult::kDone;

  if (!sent) {
    return Status(ErrorId::kTooManySessions, "descriptors of user " + std::to_string(ask.uid) +
                                                 " cannot be taken: some that it sent before " +
                                                 "do not close")
        .Fix("end the file systems that do not answer (umount, fusermount -u), then try again");
  }
  lane->left = false;
  lane->asked.push_back({ask.connection, ask.task, clock_->NowNs(), false});
  return Status();
}

std::vector<DescriptorDoor::Taken> DescriptorDoor::TakeAll() {
  std::vector<Taken> taken;
  std::array<epoll_event, 16> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    // A copy: the kernel's struct is packed.
    const uint64_t number = events[static_cast<size_t>(i)].data.u64;
    const auto found = lanes_.find(number);
    if (found != lanes_.end()) Read(number, &found->second, &taken);
  }
  return taken;
}

void DescriptorDoor::Read(uint64_t number, Lane* lane, std::vector<Taken>* taken) {
  shm::Packet packet;
  for (;;) {
    const auto result = shm::ReceivePacket(lane->channel.get(), kLaneFdsMax, &packet);
    if (result == shm::SocketResult::kWouldBlock) break;
    if (result == shm::SocketResult::kDone && packet.bytes.size() >= sizeof(LaneReply) &&
        !lane->asked.empty()) {
      OnReply(lane, std::move(packet), taken);
      continue;
    }
    // The lane was killed, or could not be forked.
    for (const Asked& asked : lane->asked) {
      if (!asked.answered) taken->push_back({asked.connection, shm::SocketResult::kClosed, {}, {}});
    }
    lanes_.erase(number);
    return;
  }
  if (lane->left && lane->asked.empty()) lanes_.erase(number);
}

void DescriptorDoor::OnReply(Lane* lane, shm::Packet packet, std::vector<Taken>* taken) {
  LaneReply reply;
  std::memcpy(&reply, packet.bytes.data(), sizeof reply);
  Asked& asked = lane->asked.front();  // answers come in the order of the asks
  asked.answered = reply.word == LaneWord::kMalformed || reply.word == LaneWord::kRefused;

  if (reply.word != LaneWord::kClosed) {
    if (asked.task == LaneTask::kTakeDirectory && reply.word == LaneWord::kTaken)
      places_.insert(asked.connection);
    packet.bytes.erase(packet.bytes.begin(), packet.bytes.begin() + sizeof reply);
    const bool refused = reply.word == LaneWord::kRefused;
    taken->push_back({asked.connection, ResultOf(reply.word),
                      refused ? WrongKind(asked.task) : Status(), std::move(packet)});
  }
  if (!asked.answered) lane->asked.pop_front();
}

void DescriptorDoor::Release(ConnectionId connection, uint32_t uid) {
  if (places_.erase(connection) == 0) return;
  const LaneAsk release{connection, LaneTask::kRelease, 0};
  for (auto& [number, lane] : lanes_) {
    if (lane.uid == uid) shm::SendPacket(lane.channel.get(), std::as_bytes(std::span(&release, 1)));
  }
}

void DescriptorDoor::Leave(uint32_t uid) {
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    const bool own = lane->second.uid == uid;
    if (own) lane->second.left = true;
    lane = own && lane->second.asked.empty() ? lanes_.erase(lane) : std::next(lane);
  }
}

}  // namespace tidepool::memserver
