// ProbeDone: decides who should write the `done` word of a fetch on a GPU (traffic/gpu.h): its
// stream, or the serve loop.
//
// A stream writes a word through the GPU's compute queues. Contexts of several processes share
// these in time slices, unless MPS is on: then the write may wait until the trainer's kernels have
// had their slice. So copies with such a write behind them are timed against plain copies, while
// another process keeps the GPU busy.
//
// One thread, which blocks for about a second, mostly until that process has made its context.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "device/device.h"
#include "device/gpu_list.h"
#include "memserver/traffic/gpu.h"

namespace tidepool::memserver {

// Never fails: if it cannot measure, it chooses the loop, which waits for no time slice.
DoneChoice ProbeDone(device::Device* device, const device::Gpu& gpu, Clock* clock);

// Compares times of the same copies, with a word written behind them by their stream and without,
// in ns and any order. The loop's way costs about ten microseconds more than a good write, so only
// a clear difference counts.
DoneChoice ChooseDone(std::span<int64_t> alone, std::span<int64_t> written);

}  // namespace tidepool::memserver
