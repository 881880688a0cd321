#include "tests/fakes/fake_cuda/driver_lock.h"

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace tidepool::fake_cuda {
namespace {

std::chrono::milliseconds StallTime() {
  const char* text = std::getenv("FAKE_CUDA_STALL_MS");
  return std::chrono::milliseconds(text == nullptr ? 0 : std::strtol(text, nullptr, 10));
}

const std::chrono::milliseconds kStall = StallTime();

std::shared_mutex& Lock() {
  static auto* const lock = new std::shared_mutex();
  return *lock;
}

}  // namespace

void DriverLock::Stall() {
  if (kStall.count() == 0) return;
  const std::lock_guard lock(Lock());
  std::this_thread::sleep_for(kStall);
}

void DriverLock::Pass() {
  if (kStall.count() == 0) return;
  const std::shared_lock lock(Lock());
}

}  // namespace tidepool::fake_cuda
