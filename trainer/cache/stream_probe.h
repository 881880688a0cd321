// StreamProbe: whether a device's streams run concurrently, or share hardware queues, where one
// that waits holds up others.
//
// One thread (the trainer's main thread), before the streams have work. Training completes either
// way (trainer/cache/ahead_pipeline.h, invariant 1); with shared queues, transfers do not overlap
// operators as they should.
#pragma once

#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"

namespace tidepool::trainer {

// Lets each stream wait for a flag while the others have work. True: none of them was held up.
// Blocks, at most a third of a second per stream if queues are shared. Errors: kMemoryMapFailed,
// kCudaFailed (a stream failed, or does not end its wait).
Result<bool> RunBesideEachOther(device::Device* device, std::span<device::Stream* const> streams,
                                Clock* clock);

}  // namespace tidepool::trainer
