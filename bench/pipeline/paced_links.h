// PacedLinks: the root complexes of an emulated machine. Each has two links, one per direction,
// which copy at a fixed rate between host memory and the memory that emulates its GPUs.
//
// Any thread starts copies and waits for them. Each link has a thread, which copies with memcpy and
// then waits until the copy's time is over. A link makes one copy at a time. A copy requested while
// the link was busy starts at the end of the previous copy by the clock, so a thread that wakes
// late does not slow its link down.
// Order: memserver's for GPUs (memserver/loop/copy_order.h). A copy requested n uses ahead is due
// when its link has started n times the copy's bytes since the request. A link starts the copy that
// is due first.
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

// One copy. The caller keeps its memory valid until it has ended.
struct LinkCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t bytes = 0;
  uint32_t gpu = 0, complex = 0;
  bool up = true;           // to the GPU
  uint32_t uses_ahead = 0;  // 0: due at once
  // The link's thread calls it when the copy has ended; it may start other copies.
  std::function<void()> then = nullptr;
};

// A copy that has ended: its request, its start and its end.
struct CopyRecord {
  uint32_t gpu = 0, complex = 0;
  bool up = true;
  uint64_t bytes = 0;
  int64_t asked_ns = 0, start_ns = 0, end_ns = 0;
};

class PacedLinks {
 public:
  // `bytes_per_ns`: the rate of each root complex, the same in both directions. The clock must
  // outlive the links.
  PacedLinks(const std::vector<double>& bytes_per_ns, Clock* clock);
  // Drops the copies that have not started.
  ~PacedLinks();
  PacedLinks(const PacedLinks&) = delete;
  PacedLinks& operator=(const PacedLinks&) = delete;

  // Requests a copy and returns its number. Requires bytes > 0.
  uint64_t Start(LinkCopy copy);
  bool Ended(uint64_t copy);
  void Wait(uint64_t copy);
  // The copies that have ended since the last call, in the order of their ends.
  std::vector<CopyRecord> TakeRecords();

 private:
  struct Waiting {
    uint64_t awaited_at = 0;  // when due, in bytes started by the link
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
    uint64_t begun = 0;   // bytes of all copies started so far
    int64_t free_ns = 0;  // end of its last copy
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
  std::vector<std::unique_ptr<Link>> links_;  // complex c: 2c up, 2c + 1 down
  std::vector<CopyRecord> records_;
};

}  // namespace tidepool::bench
