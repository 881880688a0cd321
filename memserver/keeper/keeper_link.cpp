#include "memserver/keeper/keeper_link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/keeper/session_spawn.h"
#include "shm/fd_socket.h"

namespace tidepool::memserver {

namespace {

// A keeper may notice the end of one memserver and the arrival of the next in any order.
constexpr int64_t kRetryForNs = kNsPerSecond;
constexpr int64_t kRetryPauseNs = 5 * kNsPerMs;  // the first pause, doubled each time
constexpr int64_t kReapNs = kNsPerSecond;
// While a machine is suspended, clocks go on, so that after it a wait may be over before the keeper
// has run at all: that costs one part.
constexpr int kWaitParts = 10;

Status Failed(std::string what) {
  return Status(ErrorId::kKeeperFailed, std::move(what));
}

UniqueFd PidFdOf(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

std::vector<std::string> KeepArguments(const KeeperStart& start) {
  std::vector<std::string> words{start.argv.empty() ? "memserver" : start.argv.front(), "keep"};
  words.insert(words.end(), {"--listen-fd", std::to_string(kInheritedFd), "--lease-ms",
                             std::to_string(start.lease_ms)});
  const auto number = [](auto choice) { return std::to_string(static_cast<int>(choice)); };
  words.insert(words.end(),
               {"--log-level", number(start.log_level), "--log-format", number(start.log_format)});
  if (start.no_respawn) words.emplace_back("--no-respawn");
  words.emplace_back("--");
  words.insert(words.end(), start.argv.begin(), start.argv.end());
  return words;
}

}  // namespace

Result<std::unique_ptr<KeeperLink>> KeeperLink::Connect(Clock* clock,
                                                        const std::string& socket_path,
                                                        Place place) {
  const int64_t end = clock->NowNs() + kRetryForNs;
  for (int64_t pause_ns = kRetryPauseNs;; pause_ns *= 2) {
    auto socket = shm::ConnectSocket(clock, socket_path, kKeeperWaitNs);
    if (!socket.ok())
      return Status(socket.status().id(), "no keeper answers at this socket")
          .Where(socket_path)
          .Why(socket.status().why());

    std::unique_ptr<KeeperLink> link(new KeeperLink(std::move(socket).value(), 0, kKeeperWaitNs));
    const Status greeted = link->Greet(place);
    if (greeted.ok()) return link;
    if (clock->NowNs() >= end) return Status(greeted).Where(socket_path);
    clock->SleepNs(pause_ns);
  }
}

Result<std::unique_ptr<KeeperLink>> KeeperLink::Start(const KeeperStart& start) {
  unlink(start.socket_path.c_str());
  TP_ASSIGN_OR_RETURN(UniqueFd listener, shm::ListenSocket(start.socket_path));
  auto link = StartAt(std::move(listener), start);
  if (!link.ok()) unlink(start.socket_path.c_str());
  return link;
}

Result<std::unique_ptr<KeeperLink>> KeeperLink::StartAt(UniqueFd listener,
                                                        const KeeperStart& start) {
  // Waits in the backlog until the keeper runs.
  auto socket = shm::ConnectSocket(start.clock, start.socket_path, start.wait_ns);
  if (!socket.ok())
    return Failed("the keeper's socket does not take connections").Where(start.socket_path);
  // Descriptors that do not fit are sent once the keeper reads.
  size_t sent = 0;
  const auto send_one = [&](const MemoryToHold& memory) {
    return SendMessage(socket->get(), {KeeperOp::kHold, memory.slot, memory.bytes}, memory.fd, 0) ==
           shm::SocketResult::kDone;
  };
  while (sent < start.hold.size() && !TP_PLANTED("keeper.passed_on_late") &&
         send_one(start.hold[sent]))
    ++sent;

  TP_ASSIGN_OR_RETURN(const pid_t child,
                      SpawnSession({start.program, KeepArguments(start),
                                    EnvironmentFor(start.again), listener.get(), true}));
  std::unique_ptr<KeeperLink> link(new KeeperLink(std::move(socket).value(), child, start.wait_ns));
  listener.Reset();  // from here on a dead keeper shows as a closed connection
  link->passed_on_ns_ = start.clock->NowNs();
  TP_RETURN_IF_ERROR(link->Greet(Place::kBeside));

  const bool all_sent = sent == start.hold.size();
  for (; sent < start.hold.size(); ++sent) TP_RETURN_IF_ERROR(link->Hold(start.hold[sent]));
  if (!all_sent) link->passed_on_ns_ = start.clock->NowNs();
  return link;
}

KeeperLink::KeeperLink(UniqueFd socket, pid_t child, int64_t wait_ns)
    : socket_(std::move(socket)), child_(child), wait_ns_(wait_ns) {
  if (child > 0) process_ = PidFdOf(child);
}

KeeperLink::~KeeperLink() {
  if (child_ <= 0) return;
  // A keeper that has closed the connection is about to end: it must not become a zombie.
  if (process_.valid() && shm::WaitForSocket(socket_.get(), POLLIN, 0))
    shm::WaitForSocket(process_.get(), POLLIN, kReapNs);
  waitpid(child_, nullptr, WNOHANG);
}

Status KeeperLink::Greet(Place place) {
  UniqueFd none;
  TP_ASSIGN_OR_RETURN(const KeeperMessage hello, Receive(&none));
  if (hello.op != KeeperOp::kHello || hello.slot != kKeeperProtocol) {
    return Failed("the keeper speaks protocol " + std::to_string(hello.slot) + ", this memserver " +
                  std::to_string(kKeeperProtocol));
  }
  keeper_pid_ = static_cast<pid_t>(hello.value);
  if (!process_.valid() && place == Place::kBeside) process_ = PidFdOf(keeper_pid_);

  watch_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  for (const int fd : {socket_.get(), process_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    // Without a pidfd (no /proc rights, another pid namespace) the end of the connection is the
    // only sign of death.
    if (fd >= 0 && epoll_ctl(watch_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return Failed("the keeper cannot be watched").Why(std::strerror(errno));
  }
  return Status();
}

Result<std::vector<HeldMemory>> KeeperLink::Take() {
  TP_RETURN_IF_ERROR(Send({KeeperOp::kTake}));
  std::vector<HeldMemory> taken;
  for (;;) {
    UniqueFd fd;
    TP_ASSIGN_OR_RETURN(const KeeperMessage message, Receive(&fd));
    if (message.op == KeeperOp::kGiven) {
      taken.push_back({message.slot, std::move(fd), message.value});
      continue;
    }

    if (message.op != KeeperOp::kGivenAll || message.value != taken.size())
      return Failed("the keeper sent other memory than it announced");
    TP_POINT("link.taken");
    return taken;
  }
}

Status KeeperLink::Hold(const MemoryToHold& memory) {
  TP_CHECK(memory.fd >= 0 && memory.slot < kKeptSlotsMax,
           "kept memory has a descriptor and a slot of the protocol");
  TP_RETURN_IF_ERROR(Send({KeeperOp::kHold, memory.slot, memory.bytes}, memory.fd));
  TP_POINT("link.hold_sent");
  return Status();
}

Status KeeperLink::Forget() {
  return Send({KeeperOp::kForget});
}

Status KeeperLink::Part(uint64_t lease_ms) {
  return Send({KeeperOp::kPart, 0, lease_ms});
}

Status KeeperLink::End() {
  TP_RETURN_IF_ERROR(Send({KeeperOp::kEnd}));
  if (!WaitToRead()) LogWarn("the keeper does not end", {{"pid", keeper_pid_}});
  return Status();
}

Status KeeperLink::Send(const KeeperMessage& message, int fd) {
  switch (SendMessage(socket_.get(), message, fd, wait_ns_)) {
    case shm::SocketResult::kDone: return Status();
    case shm::SocketResult::kWouldBlock: return Failed("the keeper does not read its socket");
    default: return Failed("the keeper has ended, or closed the connection");
  }
}

bool KeeperLink::WaitToRead() const {
  for (int part = 0; part < kWaitParts; ++part) {
    if (shm::WaitForSocket(socket_.get(), POLLIN, wait_ns_ / kWaitParts)) return true;
  }
  return false;
}

Result<KeeperMessage> KeeperLink::Receive(UniqueFd* fd) {
  shm::Packet packet;
  auto received = shm::ReceivePacket(socket_.get(), 1, &packet);
  if (received == shm::SocketResult::kWouldBlock) {
    if (!WaitToRead()) return Failed("the keeper does not answer");
    received = shm::ReceivePacket(socket_.get(), 1, &packet);
  }

  const auto message = received == shm::SocketResult::kDone ? MessageOf(packet) : std::nullopt;
  if (!message) {
    return Failed(received == shm::SocketResult::kClosed ? "the keeper has closed the connection"
                                                         : "the keeper's answer is malformed");
  }
  if (!packet.fds.empty()) *fd = std::move(packet.fds.front());
  return *message;
}

}  // namespace tidepool::memserver
