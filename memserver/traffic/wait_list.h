// WaitList: the parked requests of one session: checked, but waiting for a version or for a staging buffer.
//
// One thread (the serve loop). Requests keep their order. A parked request is dispatched again when something changed, never called back;
// it goes away with its session.
#pragma once

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

  void Add(const shm::Request& request) {
    TP_CHECK(requests_.size() < requests_.capacity(), "a session's requests are counted before they are parked");
    requests_.push_back(request);
    gradients_ += IsGradient(request) ? 1 : 0;
  }

  // Gives every parked request, oldest first, to `still_waits(const Request&)` and keeps those for which it returns true. A gradient
  // behind a gradient that still waits is not asked: gradients of one session are stored in the order of their requests.
  template <typename StillWaits>
  void Retry(StillWaits still_waits) {
    size_t kept = 0;
    uint32_t gradients = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const shm::Request request = requests_[i];
      const bool behind = IsGradient(request) && gradients > 0;
      if (!behind && !still_waits(request)) continue;
      gradients += IsGradient(request) ? 1 : 0;
      requests_[kept++] = request;
    }
    requests_.resize(kept);
    gradients_ = gradients;
  }

  uint32_t size() const { return static_cast<uint32_t>(requests_.size()); }
  bool holds_gradients() const { return gradients_ > 0; }
  std::span<const shm::Request> requests() const { return requests_; }

 private:
  static bool IsGradient(const shm::Request& request) { return request.op == static_cast<uint32_t>(shm::Op::kSubmitGradient); }

  std::vector<shm::Request> requests_;  // capacity is fixed
  uint32_t gradients_ = 0;
};

}  // namespace tidepool::memserver
