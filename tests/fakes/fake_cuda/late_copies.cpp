#include "tests/fakes/fake_cuda/late_copies.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace tidepool::fake_cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kLooksMax = 60'000;  // one a millisecond

struct Pending {
  std::atomic<bool> taken{false};
  std::atomic<uint64_t> bytes{0};  // stored last; 0: it has ended
  void* to = nullptr;
  const void* from = nullptr;
};
std::array<Pending, 256> pending;
std::array<char, 4096> go_file, landed_file;
int alive_end = -1;  // of a pipe whose other end is closed with this process's table

bool IsPending() {
  for (const Pending& copy : pending) {
    if (copy.bytes.load() != 0) return true;
  }
  return false;
}

// Nobody else runs in this memory any more when it copies. It allocates nothing and takes no lock:
// whoever had one is dead.
int RunBeside(void*) {
  prctl(PR_SET_NAME, "fake-gpu");
  const auto alive = static_cast<unsigned>(alive_end);
  if (alive > 0) syscall(SYS_close_range, 0U, alive - 1, 0U);
  syscall(SYS_close_range, alive + 1, ~0U, 0U);
  char byte = 0;
  while (read(alive_end, &byte, 1) > 0) {
  }
  const timespec pause{0, 1'000'000};
  for (int look = 0; IsPending() && look < kLooksMax; ++look) {
    nanosleep(&pause, nullptr);
    if (access(go_file.data(), F_OK) != 0) continue;
    for (Pending& copy : pending) std::memcpy(copy.to, copy.from, copy.bytes.exchange(0));
    close(open(landed_file.data(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  }
  syscall(SYS_exit_group, 0);
  return 0;
}

bool Start() {
  const char* file = std::getenv("FAKE_CUDA_LATE");
  std::array<int, 2> ends{};
  if (file == nullptr || pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  alive_end = ends[0];
  std::snprintf(go_file.data(), go_file.size(), "%s", file);
  std::snprintf(landed_file.data(), landed_file.size(), "%s.landed", file);
  void* const stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) return false;
  const int pid = clone(RunBeside, static_cast<char*>(stack) + kStackBytes, CLONE_VM, nullptr);
  close(ends[0]);
  return pid > 0;
}

}  // namespace

uint32_t LateCopies::Begin(void* to, const void* from, uint64_t bytes) {
  static const bool started = Start();
  for (size_t i = 0; started && i < pending.size(); ++i) {
    if (pending[i].taken.exchange(true)) continue;
    pending[i].to = to;
    pending[i].from = from;
    pending[i].bytes.store(bytes);
    return static_cast<uint32_t>(i + 1);
  }
  return 0;
}

void LateCopies::End(uint32_t number) {
  if (number == 0) return;
  pending[number - 1].bytes.store(0);
  pending[number - 1].taken.store(false);
}

}  // namespace tidepool::fake_cuda
