// CacheStreams: the device streams in which a trainer's rCache blocks are used.
//
// One thread (the trainer's main thread) enqueues work into them. Null on the host, where operators
// end before their call returns.
#pragma once

#include "device/device.h"

namespace tidepool::trainer {

struct CacheStreams {
  device::Device* device = nullptr;   // owner of the rCache memory
  device::Stream* compute = nullptr;  // runs operators
  // Waits for the server before a block is reused; runs nothing else.
  device::Stream* recycle = nullptr;
};

}  // namespace tidepool::trainer
