// DriverLock: the lock of a driver, one a process, under which it makes contexts, registers memory and loads modules: other calls of the
// process wait meanwhile.
//
// Any thread. FAKE_CUDA_STALL_MS=N: how long each of these takes; without it they take no time.
#pragma once

namespace tidepool::fake_cuda {

class DriverLock {
 public:
  // Of a call that takes long.
  static void Stall();
  // Of every other call.
  static void Pass();
};

}  // namespace tidepool::fake_cuda
