#include "memserver/former_servers.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/recovery/given_up.h"
#include "memserver/control/peer_identity.h"
#include "memserver/jobs/limits.h"

namespace tidepool::memserver {
namespace {

constexpr int64_t kLookNs = 2 * kNsPerMs;

Status Lacks(const char* what) {
  return Status(ErrorId::kHostMemoryShort, what).Why(std::strerror(errno));
}

// 0: unknown.
uint64_t OwnPidNamespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

// A start time that cannot be read proves nothing: such a process is trusted by its pid.
bool IsAnother(const ProcessName& name) {
  const uint64_t start = ReadProcessStart(name.pid);
  return start != 0 && start != name.start && !TP_PLANTED("former.reused_pid_trusted");
}

}  // namespace

Result<ProcessName> OwnProcess() {
  const ProcessName own{getpid(), ReadProcessStart(getpid()), OwnPidNamespace()};
  if (own.start != 0 && own.pid_namespace != 0) return own;
  if (access("/proc/self/stat", F_OK) != 0 && errno == ENOENT) return ProcessName{};
  return Lacks("memserver cannot read what the system says of its own process (/proc/self)");
}

Result<FormerServers> FormerServers::Watch(const std::vector<NotedServer>& noted) {
  FormerServers former;
  TP_ASSIGN_OR_RETURN(const ProcessName own, OwnProcess());

  for (const NotedServer& server : noted) {
    const ProcessName& name = server.process;
    const bool elsewhere =
        name.pid_namespace != own.pid_namespace && !TP_PLANTED("former.namespace_ignored");
    if (name.pid <= 0 || elsewhere) continue;
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, name.pid, 0)));
    if (!pidfd.valid() && (errno == ESRCH || errno == ENOSYS)) continue;
    if (!pidfd.valid())
      return Lacks("a memserver that was there before cannot be watched (pidfd_open)");
    if (IsAnother(name) || HasEnded(pidfd.get())) continue;

    if (!former.epoll_.valid()) former.epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    const bool watched = former.epoll_.valid() &&
                         epoll_ctl(former.epoll_.get(), EPOLL_CTL_ADD, pidfd.get(), &event) == 0;
    if (!watched) return Lacks("a memserver that was there before cannot be watched (epoll)");
    former.watched_.push_back({server.place, std::move(pidfd)});
  }
  return former;
}

uint32_t FormerServers::living() const {
  uint32_t living = 0;
  for (const Watched& server : watched_) living |= BitOf(server.place);
  return living;
}

uint32_t FormerServers::TakeEnded() {
  uint32_t ended = 0;
  std::erase_if(watched_, [&ended](const Watched& server) {
    const bool has_ended = HasEnded(server.pidfd.get());
    ended |= has_ended ? BitOf(server.place) : 0;
    return has_ended;
  });
  return ended;
}

void FormerServers::Forget(uint32_t servers) {
  std::erase_if(watched_,
                [servers](const Watched& server) { return (servers & BitOf(server.place)) != 0; });
}

bool FormerServers::Await(uint32_t servers, int64_t limit_ns, Clock* clock) {
  const int64_t end = clock->NowNs() + limit_ns;
  for (TakeEnded(); (living() & servers) != 0; TakeEnded()) {
    if (clock->NowNs() >= end) return false;
    clock->SleepNs(kLookNs);
  }
  return true;
}

namespace {

// Usually they end soon enough that nobody notices.
void AwaitThem(const KeptMemory& kept, FormerServers* former, KeeperWatch* watch, Clock* clock) {
  const uint32_t waited_for = former->living() & GpuServersOf(*kept.pool, kept.contents);
  if (waited_for == 0) return;

  LogInfo(
      "waiting for the end of a memserver that was there before: copies of GPUs that it began may "
      "be under way",
      {{"at_most_ms", kFormerWaitNs / kNsPerMs}});
  for (int64_t waited_ns = 0;
       waited_ns < kFormerWaitNs && !former->Await(waited_for, kFormerLookNs, clock);
       waited_ns += kFormerLookNs) {
    watch->Look();
  }
}

}  // namespace

Result<uint32_t> TakeOverFrom(FormerServers* former, const KeptMemory& kept, KeeperWatch* watch,
                              Clock* clock) {
  TP_ASSIGN_OR_RETURN(*former, FormerServers::Watch(kept.contents.servers));
  AwaitThem(kept, former, watch, clock);
  kept.index->ForgetServers(~former->living());
  TP_POINT("server.former_cleared");
  TP_ASSIGN_OR_RETURN(const ProcessName own, OwnProcess());
  if (own.pid == 0) {
    LogWarn(
        "without /proc the next memserver cannot wait for the end of this one, should it be "
        "killed");

    return 0U;
  }
  auto place = TakePlace(former, kept, own);
  TP_POINT("server.noted");
  return place;
}

Result<uint32_t> TakePlace(FormerServers* former, const KeptMemory& kept, const ProcessName& own) {
  if (const auto noted = kept.index->NoteServer(own)) return *noted;
  const uint32_t needed = GpuServersOf(*kept.pool, kept.contents);
  const uint32_t free = TP_PLANTED("former.needed_place_taken") ? ~0U : ~needed;
  if (free != 0) {
    const uint32_t first = free & (~free + 1);
    former->Forget(first);
    kept.index->ForgetServers(first);
    if (const auto noted = kept.index->NoteServer(own)) return *noted;
  }

  std::string pids;
  for (const NotedServer& server : kept.contents.servers)
    pids += (pids.empty() ? "" : " ") + std::to_string(server.process.pid);
  return Status(ErrorId::kNotReady, "kept memory has room for the names of " +
                                        std::to_string(kServersNoted) +
                                        " memservers, and so many that were killed have not ended, "
                                        "each of which copied from and to GPUs for a job")
      .Why("they are the processes " + pids)
      .Fix(
          "see what they wait for (`cat /proc/PID/task/*/stack`); end the jobs' file system calls, "
          "for example with `umount -f`");
}

}  // namespace tidepool::memserver
