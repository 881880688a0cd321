// ComputeToken: the right to use a GPU's compute queues, which contexts of several processes have
// in turns: kernels, fills, and memory operations of streams need it; copies do not.
//
// Any thread. FAKE_CUDA_TOKEN=FILE names the token: a lock of that file, which goes with the
// process that holds it. Without the variable everybody computes at once. Streams of one process
// compute beside each other; another process waits until none of them does, and has the next turn.
#pragma once

#include <mutex>
#include <string>

#include "tests/fakes/fake_cuda/kernels.h"

namespace tidepool::fake_cuda {

class ComputeToken {
 public:
  // Blocks until this process may compute; as long as it lives.
  class Turn {
   public:
    Turn() { Get().Take(); }
    ~Turn() { Get().Give(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
  };
  static bool TakeOneTurn() {
    const Turn turn;
    return true;
  }

 private:
  ComputeToken();
  static ComputeToken& Get();
  void Take();
  void Give();

  bool OthersWait() const;

  int fd_ = -1;  // none: no token
  // A lock that is shared by those who wait for the token, so that who has just had it gives way to
  // them.
  int wait_ = -1;
  int look_ = -1;  // another description of that file, to see whether somebody has it
  std::mutex mutex_;
  int turns_ = 0;
};

// memserver's kernel that keeps a GPU busy for the time that it is given
// (memserver/probe/gpu_load.h).
const FakeKernel& LoadKernel();

}  // namespace tidepool::fake_cuda
