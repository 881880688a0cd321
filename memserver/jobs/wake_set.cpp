#include "memserver/jobs/wake_set.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/system/last_words.h"

namespace tidepool::memserver {
namespace {

constexpr int kReadyMax = 64;

bool Control(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u32 = events & EPOLLET;  // the only part that Wait reads
  if (epoll_ctl(epoll, operation, fd, &event) == 0) return true;
  TP_CHECK(errno == ENOMEM || errno == ENOSPC, "a descriptor of our own is watched once");
  return false;
}

}  // namespace

WakeSet::WakeSet() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid()) DieOutOf("descriptor for an epoll set");
}

bool WakeSet::Add(int fd) {
  return Control(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN);
}
bool WakeSet::AddShared(int fd) {
  return Control(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
}
void WakeSet::Remove(int fd) {
  Control(epoll_.get(), EPOLL_CTL_DEL, fd, 0);
}

TP_HOT bool WakeSet::Wait(int64_t timeout_ns) {
  std::array<epoll_event, kReadyMax> ready;
  if (timeout_ns < kNsPerMs) {
    // epoll_wait counts in milliseconds. Events are consumed below in any case: a shared descriptor
    // reports each write once.
    pollfd set{epoll_.get(), POLLIN, 0};
    const timespec short_time{0, timeout_ns};
    if (ppoll(&set, 1, &short_time, nullptr) <= 0) return false;
    timeout_ns = 0;
  }
  const int count =
      epoll_wait(epoll_.get(), ready.data(), kReadyMax, static_cast<int>(timeout_ns / kNsPerMs));
  return count > 0 && count < kReadyMax &&
         std::all_of(ready.begin(), ready.begin() + count,
                     [](const epoll_event& one) { return one.data.u32 != 0; });
}

}  // namespace tidepool::memserver
