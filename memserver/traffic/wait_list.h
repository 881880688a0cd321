// WaitList: the parked requests of one session: checked, but waiting for a version or for a staging
// buffer.
//
// One thread (the serve loop). Requests keep their order. A parked request is dispatched again when
// something has changed, never called back; it is dropped with its session.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "shm/messages.h"

namespace tidepool::memserver {

class WaitList {
 public:
  explicit WaitList(uint32_t requests_max) { requests_.reserve(requests_max); }

  // Parks a request behind the others. Requires room, which the session tracks.
  void Add(const shm::Request& request) {
    TP_CHECK(requests_.size() < requests_.capacity(),
             "a session's requests are counted before they are parked");
    requests_.push_back(request);
    Count(request);
  }

  // Passes every parked request, oldest first, to `still_waits(const Request&)` and keeps those for
  // which it returns true. A gradient behind a gradient that still waits, and weights behind
  // weights, are not passed: they are stored in the order of their requests.
  template <typename StillWaits>
  void Retry(StillWaits still_waits) {
    size_t kept = 0;
    gradients_ = puts_ = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const shm::Request request = requests_[i];
      if (!IsBehind(request) && !still_waits(request)) continue;
      Count(request);
      requests_[kept++] = request;
    }
    requests_.resize(kept);
  }

  // Each request, oldest first, except those that Retry would skip.
  template <typename Each>
  void ForEachFirst(Each each) const {
    bool gradient = false, put = false;
    for (const shm::Request& request : requests_) {
      const bool is_gradient = Is(request, shm::Op::kSubmitGradient),
                 is_put = Is(request, shm::Op::kPutWeights);
      if (!(is_gradient && gradient) && !(is_put && put)) each(request);
      gradient |= is_gradient;
      put |= is_put;
    }
  }
  void Remove(uint64_t counter) {
    const auto found =
        std::find_if(requests_.begin(), requests_.end(),
                     [counter](const shm::Request& request) { return request.counter == counter; });
    TP_CHECK(found != requests_.end(), "what is removed was added");
    gradients_ -= Is(*found, shm::Op::kSubmitGradient) ? 1 : 0;
    puts_ -= Is(*found, shm::Op::kPutWeights) ? 1 : 0;
    requests_.erase(found);
  }

  // True if the request may not begin before one that waits.
  bool IsBehind(const shm::Request& request) const {
    return (gradients_ > 0 && Is(request, shm::Op::kSubmitGradient)) ||
           (puts_ > 0 && Is(request, shm::Op::kPutWeights));
  }

  // The number of parked requests; at(i), oldest first.
  uint32_t size() const { return static_cast<uint32_t>(requests_.size()); }
  std::span<const shm::Request> requests() const { return requests_; }

 private:
  static bool Is(const shm::Request& request, shm::Op op) {
    return request.op == static_cast<uint32_t>(op);
  }
  void Count(const shm::Request& request) {
    gradients_ += Is(request, shm::Op::kSubmitGradient) ? 1 : 0;
    puts_ += Is(request, shm::Op::kPutWeights) ? 1 : 0;
  }

  std::vector<shm::Request> requests_;  // capacity is fixed
  uint32_t gradients_ = 0, puts_ = 0;
};

}  // namespace tidepool::memserver
