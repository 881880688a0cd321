// CopyTeam: helper threads for copying a large range, because one core cannot saturate the memory.
//
// Copy may be called from any thread; one caller at a time gets the helpers, another copies alone
// meanwhile. It returns when everything is copied. Helpers spin for a bounded time after their last
// piece, then sleep. Invariants (tests/models/copy_team.pml searches every interleaving):
//  1. ticket_ = pieces of the task << 32 | next piece, one word: whether a piece is left to claim
//     never depends on a second load. A piece belongs to the thread that advanced the ticket past
//     it;
//  2. the other fields of a task change only while the ticket is used up and every claimed piece
//     has been counted as done; only a thread that has claimed a piece and not counted it yet reads
//     them.
// So a late thread with an old value of the ticket either fails to advance it, or the word has the
// same value again and the thread has claimed a piece of the present task: it read nothing else
// before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"

namespace tidepool::device {

class CopyTeam {
 public:
  struct Form {
    // Small enough that all threads end at about the same time, large enough that a claim costs
    // nothing.
    uint64_t piece_bytes = 512 * kKiB;
    // Pieces become larger if there would be more of them than the ticket can count.
    uint64_t pieces_max = 0xFFFF'FFFF;
    // For tests: called between any two steps of the hand-over, on the thread that makes them.
    void (*pause)() = nullptr;
  };

  // Starts up to `helpers` threads, as many as the system allows. They spin for `spin_ns` by
  // `clock`, which outlives the team.
  CopyTeam(const Clock* clock, uint32_t helpers, int64_t spin_ns)
      : CopyTeam(clock, helpers, spin_ns, Form()) {}
  CopyTeam(const Clock* clock, uint32_t helpers, int64_t spin_ns, const Form& form);
  ~CopyTeam();
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;

  uint32_t helpers() const { return static_cast<uint32_t>(threads_.size()); }
  // Copies like CopyBytes(dst, src, bytes, copy_bytes).
  void Copy(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes);
  // If false, Copy works alone (measured not to be worth it). Any thread.
  void Use(bool use) { used_.store(use, std::memory_order_relaxed); }
  bool used() const { return used_.load(std::memory_order_relaxed); }

 private:
  void Main();
  // Sets up the task and opens its ticket; returns the number of its pieces.
  uint32_t Open(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes);
  bool DoOne();  // claims a piece and copies it; false if there is none
  void Pause() const {
    if (form_.pause != nullptr) form_.pause();
  }

  const Clock* const clock_;
  const Form form_;
  const int64_t spin_ns_;
  std::atomic<bool> used_{true}, stop_{false}, busy_{false};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> done_{0};
  std::byte* dst_ = nullptr;  // of the task, as all below
  const std::byte* src_ = nullptr;
  uint64_t bytes_ = 0, copy_bytes_ = 0, piece_bytes_ = 0;
  alignas(64) std::atomic<uint32_t> bell_{0};  // counts tasks; helpers sleep on it
  std::vector<std::thread> threads_;
};

}  // namespace tidepool::device
