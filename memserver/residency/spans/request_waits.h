// RequestWaits: how long requests of a rank have waited in memserver since it attached, by kind.
//
// A value type. A request waits from the turn that finds that it cannot begin (its chunk's update,
// a staging buffer, or the put of another rank comes first) to the turn that begins or answers it.
// Requests that wait at once each count, so this is not the time for which training stood still.
#pragma once

#include <array>
#include <cstdint>

namespace tidepool::memserver {

struct RequestWaits {
  int64_t fetch_ns = 0, gradient_ns = 0, put_ns = 0, claim_ns = 0;
};

// The kinds in display order, with the names that reports give them.
struct RequestWaitKind {
  const char* name;
  int64_t RequestWaits::*ns;
};
inline constexpr std::array<RequestWaitKind, 4> kRequestWaitKinds{
    {{"fetch", &RequestWaits::fetch_ns},
     {"gradient", &RequestWaits::gradient_ns},
     {"put", &RequestWaits::put_ns},
     {"claim", &RequestWaits::claim_ns}}};

}  // namespace tidepool::memserver
