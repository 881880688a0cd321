// DriverLock: the lock of a driver, one a process, under which it makes contexts, registers memory
// and loads modules: other calls of the process wait meanwhile.
//
// Any thread. FAKE_CUDA_STALL_MS=N: how long each of these takes; without it they take no time.
#pragma once

namespace tidepool::fake_cuda {

class DriverLock {
 public:
  // A call that takes long holds the lock meanwhile.
  static void Stall();
  // Every other call waits for the lock.
  static void Pass();
};

}  // namespace tidepool::fake_cuda
