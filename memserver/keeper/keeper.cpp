#include "memserver/keeper/keeper.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/system/last_words.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/unique_fd.h"
#include "memserver/keeper/keeper_door.h"
#include "memserver/keeper/keeper_messages.h"
#include "memserver/keeper/session_spawn.h"

namespace tidepool::memserver {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Pause before the second start; doubled for each later one.
constexpr int64_t kBackOffNs = 100 * kNsPerMs;
constexpr int64_t kBackOffMaxNs = 30 * kNsPerSecond;
// Interval of checks on a started server that has not connected.
constexpr int64_t kStartPatienceNs = 60 * kNsPerSecond;
constexpr int64_t kFirstPatienceNs = 10 * kNsPerSecond;  // for the server that started this keeper
constexpr int64_t kSendNs = kNsPerSecond;                // time for a server to read an answer
constexpr uint32_t kPacketsPerTurn = 64;

int64_t LeaseNs(uint64_t lease_ms) {
  constexpr uint64_t kLeaseMsMax = 30ULL * 24 * 3600 * 1000;  // far from overflow
  return static_cast<int64_t>(std::min(lease_ms, kLeaseMsMax)) * kNsPerMs;
}

class Keeper {
 public:
  explicit Keeper(const KeeperOptions& options) : options_(options), door_(options.listen_fd) {}
  bool Open();  // false, after an error message: cannot listen
  void Serve();
  void Close();

 private:
  void ReadServer();
  bool OnPacket(shm::Packet packet);
  bool GiveAll();
  void OnServerEnd();
  void RefuseServer();
  void AcceptServer();
  void OnSignal();
  void ScheduleStart();
  void StartServer(int64_t now);
  void HoldFor(uint64_t lease_ms, const char* cause);
  void LetEverythingGo();
  void OnTime();
  int TimeoutMs() const;

  const KeeperOptions& options_;
  KeeperDoor door_;
  UniqueFd signals_;
  SteadyClock clock_;

  std::map<uint32_t, HeldMemory> held_;  // by slot
  // The connection; a peer that has sent no message yet is not a server.
  UniqueFd server_;
  bool served_ = false;                  // the peer of server_ has sent a message
  std::optional<uint64_t> farewell_ms_;  // lease of its kPart
  int64_t spoke_at_ns_ = 0;              // when it sent its first message
  // When the former server ended; 0: the present one has the memory as well.
  int64_t alone_since_ns_ = 0;
  uint32_t starts_ = 0;  // since a server has served for kSteadyNs
  pid_t starting_ = 0;   // started, has not sent a message yet
  int64_t start_at_ns_ = kNever, end_at_ns_ = kNever;
  bool asked_to_end_ = false;  // a keeper that stays ends once no memserver is connected
  bool ended_ = false;
};

bool Keeper::Open() {
  if (!door_.Open()) return false;
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGCHLD}) sigaddset(&set, signal);
  if (options_.stays) {  // started and ended by hand
    sigaddset(&set, SIGINT);
    std::signal(SIGINT, SIG_DFL);
  }

  sigprocmask(SIG_SETMASK, &set, nullptr);
  signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!options_.stays) end_at_ns_ = clock_.NowNs() + kFirstPatienceNs;
  LogInfo("keeper ready", {{"socket", door_.path()},
                           {"lease_ms", options_.lease_ms},
                           {"respawn", options_.no_respawn ? "no" : "yes"}});
  return signals_.valid();
}

void Keeper::Serve() {
  while (!ended_) {
    // poll ignores a negative descriptor. The server's end is handled before a successor, and
    // before the exit of the child.
    std::array<pollfd, 3> entries{
        {{server_.get(), POLLIN, 0}, {door_.fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), TimeoutMs()) < 0) continue;
    if (entries[0].revents != 0) ReadServer();
    if (entries[1].revents != 0) AcceptServer();
    if (entries[2].revents != 0) OnSignal();
    OnTime();
  }
}

void Keeper::Close() {
  held_.clear();
  door_.Close();
}

void Keeper::ReadServer() {
  shm::Packet packet;
  for (uint32_t i = 0; i < kPacketsPerTurn && !ended_ && server_.valid(); ++i) {
    switch (shm::ReceivePacket(server_.get(), 1, &packet)) {
      case shm::SocketResult::kWouldBlock: return;
      case shm::SocketResult::kClosed: return OnServerEnd();
      case shm::SocketResult::kMalformed: return RefuseServer();
      case shm::SocketResult::kDone: break;
    }
    if (!OnPacket(std::move(packet))) return RefuseServer();
  }
}

bool Keeper::OnPacket(shm::Packet packet) {
  const auto message = MessageOf(packet);
  if (!message || message->op >= KeeperOp::kHello) return false;
  if (!std::exchange(served_, true)) spoke_at_ns_ = clock_.NowNs();
  if (!TP_PLANTED("keeper.farewell_remembered")) farewell_ms_.reset();
  starting_ = 0;
  start_at_ns_ = end_at_ns_ = kNever;

  switch (message->op) {
    case KeeperOp::kHold:
      held_.insert_or_assign(
          message->slot, HeldMemory{message->slot, std::move(packet.fds.front()), message->value});
      TP_POINT("keeper.held");
      return true;

    case KeeperOp::kTake: return GiveAll();
    case KeeperOp::kForget: held_.clear(); return true;
    case KeeperOp::kPart: farewell_ms_ = message->value; return true;
    default:  // kEnd
      LogInfo("memserver has ended in order");
      LetEverythingGo();
      return true;
  }
}

bool Keeper::GiveAll() {
  for (const auto& [slot, held] : held_) {
    const auto sent =
        SendMessage(server_.get(), {KeeperOp::kGiven, slot, held.bytes}, held.fd.get(), kSendNs);
    // Its end is read next.
    if (sent != shm::SocketResult::kDone) return sent == shm::SocketResult::kClosed;
    TP_POINT("keeper.given");
  }
  const int64_t since_ns = std::exchange(alone_since_ns_, 0);
  const double alone_ms =
      since_ns == 0 ? 0 : static_cast<double>(clock_.NowNs() - since_ns) / kNsPerMs;
  LogInfo("kept memory given to a memserver", {{"pieces", held_.size()}, {"alone_ms", alone_ms}});
  return SendMessage(server_.get(), {KeeperOp::kGivenAll, 0, held_.size()}, -1, kSendNs) !=
         shm::SocketResult::kWouldBlock;
}

void Keeper::OnServerEnd() {
  server_.Reset();
  if (!std::exchange(served_, false)) return;
  ended_ |= asked_to_end_;
  alone_since_ns_ = clock_.NowNs();
  if (farewell_ms_) return HoldFor(*farewell_ms_, "memserver has stopped");
  if (clock_.NowNs() - spoke_at_ns_ >= kSteadyNs) starts_ = 0;
  if (TP_PLANTED("keeper.forgets_at_eof")) held_.clear();
  LogWarn("memserver has ended without a farewell", {{"pieces", held_.size()}});
  ScheduleStart();
}

// The peer does not speak this protocol. Its process may live on, so nothing is started beside it;
// it may connect again.
void Keeper::RefuseServer() {
  LogWarn("connection closed: it sends malformed messages, or does not read");
  server_.Reset();
  if (std::exchange(served_, false))
    HoldFor(options_.lease_ms, "memserver sent a malformed message");
}

void Keeper::AcceptServer() {
  UniqueFd socket(accept4(door_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return clock_.SleepNs(kNsPerMs);  // no descriptor left: do not spin
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return;

  if (served_ || peer.uid != geteuid()) {
    return LogWarn(served_ ? "connection refused: a memserver is connected"
                           : "connection refused: another user",
                   {{"pid", peer.pid}});
  }

  server_ = std::move(socket);  // replaces one that never sent a message
  SendMessage(server_.get(), {KeeperOp::kHello, kKeeperProtocol, static_cast<uint64_t>(getpid())},
              -1, 0);
  LogInfo("connected", {{"pid", peer.pid}});
}

// Starts are retried without limit while memory is held, but not for an empty keeper.
void Keeper::ScheduleStart() {
  if (options_.no_respawn || options_.command.empty())
    return HoldFor(options_.lease_ms, "memserver has crashed");
  if (!door_.CanBeFound())
    return HoldFor(options_.lease_ms, "no memserver would find this keeper: its socket is gone");
  const bool gives_up = held_.empty() || TP_PLANTED("keeper.gives_up");
  if (gives_up && starts_ >= kStartsMax)
    return HoldFor(options_.lease_ms, "memserver has crashed too often");

  constexpr uint32_t kDoublings = 10;  // the longest pause from there on
  const int64_t pause_ns =
      starts_ == 0 ? 0 : std::min(kBackOffMaxNs, kBackOffNs << std::min(starts_ - 1, kDoublings));
  start_at_ns_ = clock_.NowNs() + pause_ns;
  end_at_ns_ = kNever;
  if (starts_ >= kStartsMax)
    LogWarn("memserver goes on failing; its memory stays held",
            {{"starts", starts_}, {"next_in_ms", pause_ns / kNsPerMs}});
}

void Keeper::StartServer(int64_t now) {
  start_at_ns_ = kNever;
  end_at_ns_ = now + std::max(kStartPatienceNs, LeaseNs(options_.lease_ms));
  ++starts_;
  TP_POINT("keeper.respawning");

  const auto pid = SpawnSession({options_.command.front(), options_.command, EnvironmentFor(true)});
  if (!pid.ok()) {
    LogError(pid.status().Line(),
             {{"program", options_.command.front()}, {"why", pid.status().why()}});
    return ScheduleStart();
  }
  starting_ = pid.value();
  LogInfo("memserver started again", {{"pid", starting_}, {"start", starts_}});
}

void Keeper::HoldFor(uint64_t lease_ms, const char* cause) {
  start_at_ns_ = kNever;
  end_at_ns_ = clock_.NowNs() + LeaseNs(lease_ms);
  if (held_.empty()) LetEverythingGo();
  LogInfo(held_.empty() ? "nothing to hold" : "holding memory without a memserver",
          {{"cause", cause}, {"lease_ms", lease_ms}});
}

// The end of a keeper, unless it stays: then it closes the connection, which is the answer to a
// farewell.
void Keeper::LetEverythingGo() {
  held_.clear();
  if (!options_.stays) {
    ended_ = true;
    return;
  }
  ended_ |= asked_to_end_;
  start_at_ns_ = end_at_ns_ = kNever;
  served_ = false;
  server_.Reset();
}

void Keeper::OnSignal() {
  signalfd_siginfo info{};
  bool asked_to_end = false;
  while (read(signals_.get(), &info, sizeof info) == sizeof info)
    asked_to_end |= info.ssi_signo != SIGCHLD;

  int state = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &state, WNOHANG)) > 0;) {
    const bool killed = WIFSIGNALED(state);
    LogInfo("started memserver ended",
            {{"pid", pid},
             {killed ? "signal" : "exit_code", killed ? WTERMSIG(state) : WEXITSTATUS(state)}});
    if (pid != starting_) continue;
    starting_ = 0;
    ScheduleStart();
  }

  if (!asked_to_end) return;
  asked_to_end_ = options_.stays;
  const char* told = asked_to_end_ ? "asked to end: as soon as memserver has"
                                   : "SIGTERM ignored: a memserver is connected";
  LogInfo(served_ ? told : "SIGTERM: ending", {{"pieces", held_.size()}});
  ended_ |= !served_;
}

void Keeper::OnTime() {
  if (served_ || ended_) return;
  const int64_t now = clock_.NowNs();
  if (now >= start_at_ns_) return StartServer(now);
  if (now < end_at_ns_) return;
  if (starting_ != 0 && door_.CanBeFound()) {  // it may be slow, as long as it lives
    end_at_ns_ = now + kStartPatienceNs;
    return;
  }
  LogInfo("no memserver has come: what was held is given up", {{"pieces", held_.size()}});
  LetEverythingGo();
}

int Keeper::TimeoutMs() const {
  const int64_t next = std::min(start_at_ns_, end_at_ns_);
  if (served_ || next == kNever) return -1;
  return static_cast<int>(std::clamp<int64_t>((next - clock_.NowNs()) / kNsPerMs + 1, 0,
                                              std::numeric_limits<int>::max()));
}

}  // namespace

int RunKeeper(const KeeperOptions& options) {
  IsolateProcess("tp-keeper", options.listen_fd);
  DropLinesThatBlock();
  if (!TP_PLANTED("keeper.ends_without_memory")) WaitForMemory();
  Keeper keeper(options);
  if (!keeper.Open()) return kExitUsage;
  keeper.Serve();
  keeper.Close();
  prctl(PR_SET_DUMPABLE, 1);  // nothing is held any more, so leak checkers may look
  return kExitOk;
}

}  // namespace tidepool::memserver
