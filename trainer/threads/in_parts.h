// InParts: a loop over elements, cut into consecutive parts that run on threads of their own.
//
// Any thread; blocks until all parts have ended. For work that is long and rare, such as the first
// weights of a model: the threads are made anew by each call.
#pragma once

#include <cstdint>
#include <functional>

namespace tidepool::trainer {

// Calls `work(begin, end)` for consecutive parts of [0, count), on at most `threads` threads, the
// caller's among them. No part but the last is shorter than `least` (>= 1) elements. `work` must
// not throw, and is called by several threads at once.
void InParts(uint64_t count, uint64_t least, uint32_t threads,
             const std::function<void(uint64_t begin, uint64_t end)>& work);

}  // namespace tidepool::trainer
