// Attempt: the attempt at the open step to which a rank's gradients and step ends belong, as far as
// the rank knows (shm/messages.h).
//
// One thread; a value. A rank receives the number when it attaches, and counts from there. Servers
// of earlier versions do not send it: the rank then knows it from the next sealed step on, and its
// requests name none until then.
#pragma once

#include <cstdint>
#include <optional>

#include "base/error_catalog.h"
#include "shm/messages.h"

namespace tidepool::client {

class Attempt {
 public:
  explicit Attempt(std::optional<uint32_t> open = std::nullopt) : open_(open) {}

  // Writes the attempt into the flags of a new request that needs it.
  void Name(shm::Request* request) const {
    const bool counts = Is(*request, shm::Op::kSubmitGradient) || Is(*request, shm::Op::kEndStep) ||
                        shm::IsStepNumbers(*request);
    if (counts && open_) request->flags |= shm::FlagsOfAttempt(*open_);
  }
  // Updates the attempt after `request` was answered with `error` under version `protocol`.
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
