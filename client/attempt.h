// Attempt: to which attempt at the open step a rank's gradients and ends of steps belong, as far as
// the rank can know (shm/messages.h).
//
// One thread; a value. A rank hears the number when it attaches, and counts from there. A server of
// an earlier version says nothing of it: then the rank knows it from the next sealed step on, and
// until then its requests name none.
#pragma once

#include <cstdint>
#include <optional>

#include "base/error_catalog.h"
#include "shm/messages.h"

namespace tidepool::client {

class Attempt {
 public:
  explicit Attempt(std::optional<uint32_t> open = std::nullopt) : open_(open) {}

  // Names the attempt in the flags of a new request, where it counts.
  void Name(shm::Request* request) const {
    const bool counts = Is(*request, shm::Op::kSubmitGradient) || Is(*request, shm::Op::kEndStep) ||
                        shm::IsStepNumbers(*request);
    if (counts && open_) request->flags |= shm::FlagsOfAttempt(*open_);
  }
  // Learns from a `request` that was answered with `error` in a session of version `protocol`.
  void Follow(const shm::Request& request, ErrorId error, uint32_t protocol) {
    if (!Is(request, shm::Op::kEndStep)) return;
    if (error == ErrorId::kNone) open_ = 0;
    if (error != ErrorId::kNonFinite) return;
    const std::optional<uint32_t> dropped =
        protocol >= shm::kAbiAttempt ? shm::AttemptIn(request.flags) : std::nullopt;
    open_ = dropped ? std::optional(shm::AttemptAfter(*dropped)) : std::nullopt;
  }

 private:
  static bool Is(const shm::Request& request, shm::Op op) {
    return request.op == static_cast<uint32_t>(op);
  }
  std::optional<uint32_t> open_;
};

}  // namespace tidepool::client
