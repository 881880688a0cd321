// CacheStreams: the streams of a device on which a trainer's rCache blocks are used.
//
// One thread (the trainer's main thread) puts work into them. Null on the host, where operators end
// before their call returns.
#pragma once

#include "device/device.h"

namespace tidepool::trainer {

struct CacheStreams {
  device::Device* device = nullptr;   // of the rCache memory
  device::Stream* compute = nullptr;  // on which operators run
  // Waits for the server before a block is used again; nothing else runs on it.
  device::Stream* recycle = nullptr;
};

}  // namespace tidepool::trainer
