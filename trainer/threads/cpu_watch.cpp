#include "trainer/threads/cpu_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "base/clock.h"
#include "trainer/threads/cpu_share.h"
#include "trainer/threads/short_waits.h"

namespace tidepool::trainer {
namespace {

constexpr int kLookEveryMs = 100;

}  // namespace

std::unique_ptr<CpuWatch> CpuWatch::Start(uint32_t compute_threads, const Clock* clock) {
  if (compute_threads < 2 || !ShortWaits::Possible()) return nullptr;
  UniqueFd end(eventfd(0, EFD_CLOEXEC));
  if (!end.valid()) return nullptr;
  return std::unique_ptr<CpuWatch>(new CpuWatch(std::move(end), gettid(), clock));
}

CpuWatch::CpuWatch(UniqueFd end, pid_t watched, const Clock* clock)
    : end_(std::move(end)), watched_(watched), clock_(clock), thread_([this] { Look(); }) {}

CpuWatch::~CpuWatch() {
  eventfd_write(end_.get(), 1);
  thread_.join();
}

void CpuWatch::Look() {
  CpuShare share;
  std::optional<ShortWaits> short_waits;
  pollfd end{.fd = end_.get(), .events = POLLIN, .revents = 0};

  while (poll(&end, 1, kLookEveryMs) <= 0) {
    const std::optional<CpuAccount> account = CpuAccountOf(watched_);
    if (!account) continue;

    const bool shared = share.Look(clock_->NowNs(), *account);
    if (shared == shared_) continue;
    if (shared) {
      short_waits.emplace();
    } else {
      short_waits.reset();
    }
    shared_ = shared;
  }
}

}  // namespace tidepool::trainer
