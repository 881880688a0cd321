// FakeStream, FakeEvent: a stream of the stand-in, with a thread of its own from its first
// operation on, and a point in it.
//
// Put: any thread. The thread runs operations in order and lives until the stream is closed and
// empty; a stream that was closed while it waits for a flag goes on waiting. Addresses are looked
// up when an operation runs, as a GPU does: one that leads nowhere then breaks the context (700).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/fakes/fake_cuda/hardware_queue.h"
#include "tests/fakes/fake_cuda/kernels.h"
#include "tests/fakes/fake_cuda/memory.h"

namespace tidepool::fake_cuda {

class FakeStream;

struct Operation {
  enum class Kind { kCopy, kFill, kKernel, kWait, kWrite, kAfter };
  Kind kind = Kind::kCopy;
  CudaAddress dst = 0, src = 0;  // kWait, kWrite: the flag is dst
  uint64_t bytes = 0;
  uint64_t value = 0;     // of a flag, of each byte (kFill), or threads (kKernel)
  bool pageable = false;  // at one end is host memory that is not registered
  const FakeKernel* kernel = nullptr;
  std::vector<std::byte> arguments = {};        // of the kernel
  std::shared_ptr<FakeStream> other = nullptr;  // kAfter: behind operation `value` of this stream
  uint64_t breaks = 0;                          // of the context when it was put in
  uint64_t place = 0;                           // in the queue of the hardware
  uint32_t late = 0;                            // LateCopies
};

class FakeStream : public std::enable_shared_from_this<FakeStream> {
 public:
  // In the queue of the hardware that is its turn. `gpu_ordinal`: of its GPU.
  explicit FakeStream(int gpu_ordinal)
      : ordinal(gpu_ordinal),
        queue_(HardwareQueue::OfNewStream()),
        of_queue_(queue_ ? queue_->AddStream() : 0) {}
  // Number of the operation, from 1.
  uint64_t Put(const Operation& operation);
  uint64_t last() const;
  bool Done(uint64_t number) const;
  // Until it is done, or the context is broken and nothing is being done any more.
  void Await(uint64_t number) const;
  void Close();

  const int ordinal;

 private:
  void Main();
  // False: an address leads nowhere.
  static bool Run(const Operation& operation);
  static bool Move(const Operation& operation);
  static bool Wait(const Operation& operation);
  // Until what it comes behind has ended, or the context is broken.
  static void AwaitOther(const Operation& operation);

  const std::shared_ptr<HardwareQueue> queue_;  // null: its own
  const uint64_t of_queue_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Operation> operations_;
  uint64_t put_ = 0, done_ = 0;
  bool started_ = false, closed_ = false, running_ = false;
};

struct FakeEvent {
  std::shared_ptr<FakeStream> stream;  // null: never recorded
  uint64_t number = 0;
};

}  // namespace tidepool::fake_cuda
