#include "memserver/wake_set.h"

#include <sys/epoll.h>

#include <array>

#include "base/check.h"
#include "base/clock.h"

namespace tidepool::memserver {
namespace {

constexpr int kReadyMax = 64;

void Control(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  TP_CHECK(epoll_ctl(epoll, operation, fd, &event) == 0, "a descriptor of our own is watched once");
}

}  // namespace

WakeSet::WakeSet() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  TP_CHECK(epoll_.valid(), "epoll_create1");
}

void WakeSet::Add(int fd) {
  Control(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN);
}
void WakeSet::AddShared(int fd) {
  Control(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
}
void WakeSet::Remove(int fd) {
  Control(epoll_.get(), EPOLL_CTL_DEL, fd, 0);
}

void WakeSet::Wait(int64_t timeout_ns) {
  std::array<epoll_event, kReadyMax> ready;
  epoll_wait(epoll_.get(), ready.data(), kReadyMax, static_cast<int>(timeout_ns / kNsPerMs));
}

}  // namespace tidepool::memserver
