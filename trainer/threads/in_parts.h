// InParts: a loop over elements, split into consecutive parts that run on separate threads.
//
// Any thread; blocks until all parts have ended. For long and rare work, such as the initial
// weights of a model: each call creates its threads.
#pragma once

#include <cstdint>
#include <functional>

namespace tidepool::trainer {

// Calls `work(begin, end)` for consecutive parts of [0, count), on at most `threads` threads,
// including the caller's. No part but the last is shorter than `least` (>= 1) elements. `work` must
// not throw, and is called by several threads at once.
void InParts(uint64_t count, uint64_t least, uint32_t threads,
             const std::function<void(uint64_t begin, uint64_t end)>& work);

}  // namespace tidepool::trainer
