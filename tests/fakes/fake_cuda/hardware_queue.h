// HardwareQueue: one of the few queues of a GPU through which the work of all streams of a process
// goes (FAKE_CUDA_QUEUES).
//
// Any thread. A stream has a turn for each of its operations; a turn that waits for a flag holds up
// all streams of the queue.
//   FAKE_CUDA_QUEUES=N           streams share N queues, dealt out in the order in which they are
//                                made (0, the default: each has its own)
//   FAKE_CUDA_QUEUE_ORDER=told   what CUDA was not told the order of (it knows the order of each
//                                stream, and events) comes in the worst one: the stream that was
//                                made last goes first. Else turns come in the order of the calls
// A thread that makes streams stands for a process, as a rank does in tests: streams of different
// threads share nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

namespace tidepool::fake_cuda {

class HardwareQueue {
 public:
  // The queue of the stream that is made now; null: it has a queue of its own.
  static std::shared_ptr<HardwareQueue> OfNewStream();

  explicit HardwareQueue(bool as_told) : as_told_(as_told) {}
  uint64_t AddStream();
  // An operation is put into a stream: its place in the order of the calls.
  uint64_t Put();
  // Until it is the operation's turn; End ends it.
  void Begin(uint64_t stream, uint64_t place);
  void End();
  // The order of events is one that CUDA knows: then only the stream itself stands at one.
  bool events_stand_outside() const { return as_told_; }

 private:
  const bool as_told_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t streams_ = 0, put_ = 0, next_ = 1;
  bool busy_ = false;
  std::set<uint64_t> waiting_;  // streams, as_told_
};

}  // namespace tidepool::fake_cuda
