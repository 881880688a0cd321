#include "client/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace tidepool::client {

namespace {

// Number of forks since the first process that made a guard.
std::atomic<uint64_t> generation{0};

void CountFork() {
  generation.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : generation_(generation.load(std::memory_order_relaxed)) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, CountFork);
}

bool ForkGuard::Inherited() const {
  return generation.load(std::memory_order_relaxed) != generation_;
}

}  // namespace tidepool::client
