// Ledger: what all processes of a test have taken of each GPU's memory (FAKE_CUDA_LEDGER), as one
// driver knows it for the machine.
//
// Any thread. FAKE_CUDA_LEDGER=FILE names a file that the processes share; without it each counts
// its own alone. What a process has taken is free again when it ends, however it ends: a record
// lock of its place in the file goes with it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace tidepool::fake_cuda {

class Ledger {
 public:
  // Null: no such file is named.
  static Ledger* Get();

  // False: there are not so many of `all` left.
  bool Take(int gpu, uint64_t bytes, uint64_t all);
  void Give(int gpu, uint64_t bytes);
  uint64_t Taken(int gpu) const;

 private:
  static constexpr int kPlaces = 64, kGpus = 16;
  struct Page {
    std::array<std::array<std::atomic<uint64_t>, kGpus>, kPlaces> bytes;
  };

  explicit Ledger(const char* path);
  // Whether the place is another living process's.
  bool IsTaken(int place) const;
  void LockAll(bool lock) const;

  int fd_ = -1;
  int place_ = -1;
  Page* page_ = nullptr;
};

}  // namespace tidepool::fake_cuda
