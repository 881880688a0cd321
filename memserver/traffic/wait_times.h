// WaitTimes: measures how long the requests of one session wait.
//
// One thread (the serve loop); times are handed in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "memserver/residency/spans/request_waits.h"
#include "shm/channel_layout.h"
#include "shm/messages.h"

namespace tidepool::memserver {

class WaitTimes {
 public:
  // The request waits from now on; it may be told again while it does.
  void Begin(const shm::Request& request, int64_t now_ns) {
    int64_t& since_ns = since_ns_[Slot(request)];
    if (since_ns == 0) since_ns = now_ns;
  }
  // It waits no longer. Returns for how long it did; 0 if it never waited.
  int64_t End(const shm::Request& request, int64_t now_ns) {
    const int64_t since_ns = std::exchange(since_ns_[Slot(request)], 0);
    const int64_t waited_ns = since_ns == 0 ? 0 : now_ns - since_ns;
    *SumOf(static_cast<shm::Op>(request.op)) += waited_ns;
    return waited_ns;
  }
  // The sums over all requests whose wait has ended.
  const RequestWaits& sums() const { return sums_; }

 private:
  static size_t Slot(const shm::Request& request) { return request.counter % shm::kRingEntries; }
  int64_t* SumOf(shm::Op op) {
    switch (op) {
      case shm::Op::kSubmitGradient: return &sums_.gradient_ns;
      case shm::Op::kPutWeights: return &sums_.put_ns;
      case shm::Op::kClaimFrozen: return &sums_.claim_ns;
      default: return &sums_.fetch_ns;
    }
  }

  RequestWaits sums_;
  std::array<int64_t, shm::kRingEntries> since_ns_{};  // 0: it does not wait
};

}  // namespace tidepool::memserver
