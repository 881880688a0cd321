// StreamProbe: whether the streams of a device run beside each other, or share queues of the
// hardware, where one that waits holds up others.
//
// One thread (the trainer's main thread), before the streams hold anything. Training ends either
// way (trainer/cache/ahead_pipeline.h, invariant 1); where queues are shared, transfers do not
// overlap operators as they should.
#pragma once

#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"

namespace tidepool::trainer {

// Lets each stream wait for a flag while the others have something to do. True: none of them was
// held up. Blocks, for a third of a second a stream at most where queues are shared. Errors:
// kMemoryMapFailed, kCudaFailed (a stream failed, or does not end its wait).
Result<bool> RunBesideEachOther(device::Device* device, std::span<device::Stream* const> streams,
                                Clock* clock);

}  // namespace tidepool::trainer
