#include "trainer/launch/stop_flag.h"

#include <csignal>

#include <atomic>

namespace tidepool::trainer {
namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch nothing else");

void SetAction(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  // SA_RESTART: system calls of libraries continue after the signal.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void Remember(int signal) {
  received.store(signal, std::memory_order_relaxed);
  SetAction(SIG_DFL);
}

}  // namespace

void StopFlag::Install() {
  received.store(0, std::memory_order_relaxed);
  SetAction(Remember);
}

void StopFlag::Uninstall() {
  SetAction(SIG_DFL);
  received.store(0, std::memory_order_relaxed);
}

int StopFlag::Signal() {
  return received.load(std::memory_order_relaxed);
}

}  // namespace tidepool::trainer
