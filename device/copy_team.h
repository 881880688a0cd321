// CopyTeam: threads that help whoever copies much at the moment: one core cannot keep the memory busy.
//
// Copy may be called from any thread; one caller at a time gets the helpers, another copies alone meanwhile. It returns when all is copied.
// Helpers spin for a bounded time after their last piece, then sleep.
// Invariants:
//  1. ticket_ = generation << 32 | next piece; a piece belongs to whoever moved the ticket past it;
//  2. the fields of a task change only between generations, when every piece of the last one has been done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/units.h"

namespace tidepool::device {

class CopyTeam {
 public:
  // As many of `helpers` threads as the system gives.
  CopyTeam(uint32_t helpers, int64_t spin_ns);
  ~CopyTeam();
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;

  uint32_t helpers() const { return static_cast<uint32_t>(threads_.size()); }
  // As CopyBytes(dst, src, bytes, copy_bytes).
  void Copy(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes);
  // Off, Copy works alone (measured not to be worth it). Any thread.
  void Use(bool use) { used_.store(use, std::memory_order_relaxed); }
  bool used() const { return used_.load(std::memory_order_relaxed); }

 private:
  // Small enough that everybody ends at about the same time, large enough that a claim costs nothing.
  static constexpr uint64_t kPieceBytes = 512 * kKiB;

  void Main();
  bool DoOne();  // claims a piece and copies it; false when there is none

  const int64_t spin_ns_;
  std::atomic<bool> used_{true}, stop_{false}, busy_{false};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> pieces_{0}, done_{0};
  std::byte* dst_ = nullptr;  // of the task, as all below
  const std::byte* src_ = nullptr;
  uint64_t bytes_ = 0, copy_bytes_ = 0;
  alignas(64) std::atomic<uint32_t> bell_{0};  // counts tasks; helpers sleep on it
  std::vector<std::thread> threads_;
};

}  // namespace tidepool::device
