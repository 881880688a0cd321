// PacedLinks: the root complexes of an emulated machine: each copies between host memory and what
// stands for the memory of its GPUs, at so many bytes a second in each direction.
//
// Any thread starts copies and waits for them; a thread a link makes them, with memcpy, and lets
// each end when its time is over. A link has one copy at a time. One that was asked for while the
// link was busy takes its time from the end of the one before, so that a thread that wakes late
// makes no link slower.
// Order: memserver's for GPUs (memserver/loop/copy_order.h): a copy that was asked for n uses ahead
// is awaited when n times its bytes have begun on its link since; what has been awaited longest, or
// will be awaited first, begins.
// Times are nanoseconds of the clock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace tidepool::bench {

// One copy. Its memory is the caller's until it has ended.
struct LinkCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t bytes = 0;
  uint32_t gpu = 0, complex = 0;
  bool up = true;           // to the GPU
  uint32_t uses_ahead = 0;  // 0: it is awaited
  // Called by the link's thread when it has ended; may start others.
  std::function<void()> then = nullptr;
};

// What became of one.
struct CopyRecord {
  uint32_t gpu = 0, complex = 0;
  bool up = true;
  uint64_t bytes = 0;
  int64_t asked_ns = 0, start_ns = 0, end_ns = 0;
};

class PacedLinks {
 public:
  // By root complex, in each direction. The clock outlives the links.
  PacedLinks(const std::vector<double>& bytes_per_ns, Clock* clock);
  // Copies that have not begun are dropped.
  ~PacedLinks();
  PacedLinks(const PacedLinks&) = delete;
  PacedLinks& operator=(const PacedLinks&) = delete;

  // Returns the copy's number. Requires bytes.
  uint64_t Start(LinkCopy copy);
  bool Ended(uint64_t copy);
  void Wait(uint64_t copy);
  // What has ended since the last call, in the order of the ends.
  std::vector<CopyRecord> TakeRecords();

 private:
  struct Waiting {
    uint64_t awaited_at = 0;  // by the bytes that the link has begun
    uint64_t number = 0;
    int64_t asked_ns = 0;
    LinkCopy copy;
    friend bool operator<(const Waiting& a, const Waiting& b) {
      return a.awaited_at != b.awaited_at ? a.awaited_at < b.awaited_at : a.number < b.number;
    }
  };
  struct Link {
    double bytes_per_ns = 0;
    std::set<Waiting> waiting;
    uint64_t begun = 0;   // bytes, ever
    int64_t free_ns = 0;  // when its last copy ended
    std::condition_variable wakes;
    std::thread thread;
  };
  void Serve(Link* link);
  void CopyOne(Link* link, std::unique_lock<std::mutex>* lock);

  Clock* const clock_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool stops_ = false;
  uint64_t last_ = 0;
  std::set<uint64_t> open_;                   // copies that have not ended
  std::vector<std::unique_ptr<Link>> links_;  // of complex c: 2 c up, 2 c + 1 down
  std::vector<CopyRecord> records_;
};

}  // namespace tidepool::bench
