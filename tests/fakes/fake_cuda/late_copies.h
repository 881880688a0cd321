// LateCopies: what a GPU goes on to copy to the host for a process that was killed.
//
// FAKE_CUDA_LATE=FILE in the environment. Another process shares this one's memory, as a GPU does,
// and nothing else of it: SIGKILL does not reach it, and it keeps the mappings. When this process's
// descriptors have been closed, it waits until FILE exists, makes the copies from GPUs to
// registered memory that were on a stream and had not ended, makes FILE.landed, and ends. (Where
// none were, or where FILE does not come within a minute, it ends.) A driver does not let the
// killed process end before such copies have: a test has a thread of it in a call that does not end
// (tests/fakes/silent_files.h) until then.
//
// Any thread. Without the variable nothing is done.
#pragma once

#include <cstdint>

namespace tidepool::fake_cuda {

class LateCopies {
 public:
  // A copy is put on a stream. Its number, or 0: it is not followed.
  static uint32_t Begin(void* to, const void* from, uint64_t bytes);
  static void End(uint32_t number);
};

}  // namespace tidepool::fake_cuda
