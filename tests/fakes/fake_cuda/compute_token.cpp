#include "tests/fakes/fake_cuda/compute_token.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace tidepool::fake_cuda {
namespace {

bool Wait(const std::byte* arguments, uint64_t /*threads*/) {
  uint64_t ns = 0;
  std::memcpy(&ns, arguments, sizeof ns);
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
  return true;
}

}  // namespace

ComputeToken& ComputeToken::Get() {
  static auto* const token = new ComputeToken();
  return *token;
}

ComputeToken::ComputeToken() {
  const char* file = std::getenv("FAKE_CUDA_TOKEN");
  if (file == nullptr) return;
  fd_ = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  for (int* fd : {&wait_, &look_})
    *fd = open((std::string(file) + ".wait").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

bool ComputeToken::OthersWait() const {
  if (flock(look_, LOCK_EX | LOCK_NB) != 0) return true;
  flock(look_, LOCK_UN);
  return false;
}

// Whoever waits for a lock of a file is woken when it is free, and may come too late for it again
// and again: so turns are counted.
void ComputeToken::Take() {
  if (fd_ < 0) return;
  const std::lock_guard lock(mutex_);
  if (turns_++ > 0) return;

  const pid_t own = getpid();
  for (;;) {
    flock(wait_, LOCK_SH);
    flock(fd_, LOCK_EX);
    flock(wait_, LOCK_UN);
    pid_t last = 0;
    const bool was_own = pread(fd_, &last, sizeof last, 0) == sizeof last && last == own;
    if (!was_own || !OthersWait()) break;
    flock(fd_, LOCK_UN);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  [[maybe_unused]] const auto n = pwrite(fd_, &own, sizeof own, 0);
}

void ComputeToken::Give() {
  if (fd_ < 0) return;
  const std::lock_guard lock(mutex_);
  if (--turns_ == 0) flock(fd_, LOCK_UN);
}

const FakeKernel& LoadKernel() {
  static constexpr FakeKernel kLoad = {"tidepool_gpu_load", sizeof(uint64_t), 256, Wait};
  return kLoad;
}

}  // namespace tidepool::fake_cuda
