#include "memserver/control/rank_watch.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/system/last_words.h"
#include "base/log.h"
#include "base/planted.h"
#include "memserver/control/peer_identity.h"

namespace tidepool::memserver {

namespace {

// True when the pid belongs to another process now. A start time that could not be read, now or
// when the rank attached, proves nothing; the pidfd tells when the process has ended.
bool IsAnother(const AwaitRank& rank) {
  const uint64_t start = ReadProcessStart(rank.pid);
  const bool known =
      (start != 0 && rank.process_start != 0) || TP_PLANTED("jobs.unread_start_is_another");
  return known && start != rank.process_start && !TP_PLANTED("jobs.reused_pid_trusted");
}

}  // namespace

RankWatch::RankWatch() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid()) DieOutOf("descriptor for an epoll set");
}

bool RankWatch::Watch(const AwaitRank& rank) {
  if (rank.pid <= 0) return true;
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, rank.pid, 0)));
  if (!pidfd.valid() && errno == ESRCH) return false;
  const uint64_t number = ++last_number_;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;

  if (!pidfd.valid() || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pidfd.get(), &event) != 0) {
    LogWarn("the process of an awaited rank cannot be watched",
            {{"job", rank.job},
             {"rank", rank.rank},
             {"pid", rank.pid},
             {"why", std::string(std::strerror(errno))}});
    return true;
  }

  if (IsAnother(rank)) return false;
  watches_.emplace(number, Watched{{rank.job, rank.rank, rank.nonce}, std::move(pidfd)});
  return true;
}

void RankWatch::Forget(const AwaitedRankLost& rank) {
  std::erase_if(watches_, [&rank](const auto& entry) {
    const AwaitedRankLost& watched = entry.second.rank;
    return watched.job == rank.job && watched.rank == rank.rank && watched.nonce == rank.nonce;
  });
}

std::vector<AwaitedRankLost> RankWatch::TakeLost() {
  std::vector<AwaitedRankLost> lost;
  std::array<epoll_event, 64> events;  // each is about one rank; the next call returns more
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    // A copy: the kernel's struct is packed.
    const uint64_t number = events[static_cast<size_t>(i)].data.u64;
    const auto watched = watches_.extract(number);
    if (watched) lost.push_back(watched.mapped().rank);
  }
  return lost;
}

}  // namespace tidepool::memserver
