// MomentMemory: measures what a rank uses beside its chunks, moment by moment, and makes the
// budgets of blocks under which all together stay within a limit (PatrickStar, sections 7.1 and 8).
//
// One thread (the trainer's main thread); it decides nothing: a budget is a function of the numbers
// of one measured step, the largest of all ranks, so that ranks decide alike. Without a limit every
// call does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "trainer/plan/moment_budget.h"

namespace tidepool::trainer {

// A limit on the memory of one rank's device. The functions may be called until the cache ends.
struct MemoryLimit {
  uint64_t bytes = 0;  // of chunks and all else; 0: no limit
  // The most bytes beside the rCache at any time since the call before.
  std::function<uint64_t()> take_peak = nullptr;
  // Gives memory of the rCache, whose content is not needed, back to the system; false: it cannot.
  std::function<bool(std::byte* block, uint64_t bytes)> release = nullptr;
  // Replaces each number by the largest of all ranks. All ranks call it at the same point; blocks.
  // Errors: kCollectiveFailed.
  std::function<Status(std::vector<uint64_t>* numbers)> most_of_ranks = nullptr;
};

class MomentMemory {
 public:
  // `room.limit` is set here.
  MomentMemory(MemoryLimit limit, MemoryRoom room);

  // Whether a limit was given.
  bool on() const { return limit_.bytes > 0; }
  const MemoryLimit& limit() const { return limit_; }

  // A pass begins; `blocks` of the rCache have memory, here and below.
  void BeginPass(uint64_t blocks);
  // The time from moment `position` of the pass until the next one ends.
  void EndPeriod(uint64_t position, uint64_t blocks);

  // What a profile says of the most bytes beside chunks; 0: nothing.
  void Expect(uint64_t others) { expected_ = others; }
  // Blocks for a pass of which nothing was measured, where its moments need no more.
  uint64_t WarmUp() const;
  // The budgets by what was measured in the pass that has ended, which needed these blocks by
  // moment. Blocks. Errors: kRcacheTooSmall (names the smallest limit that works), those of
  // most_of_ranks.
  Result<std::vector<uint64_t>> Budgets(const std::vector<uint64_t>& needs) const;

  // The most bytes in use so far, chunks included.
  uint64_t most() const { return most_; }

 private:
  uint64_t TakePeak(uint64_t blocks);

  const MemoryLimit limit_;
  MemoryRoom room_;
  uint64_t expected_ = 0, most_ = 0;
  uint64_t at_begin_ = 0;         // bytes beside chunks when the pass began
  std::vector<uint64_t> others_;  // of the present pass, by moment
};

}  // namespace tidepool::trainer
