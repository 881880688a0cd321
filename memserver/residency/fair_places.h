// Fair places: how many of a counted resource (jobs, ranks, places in the queue) one user may take,
// so that others always find some.
//
// Pure functions. A user has at most `of_user_max`. The last quarter of all places is reserved for
// users who have few (at most a sixteenth of all, at least one): a user who has more gets no place
// there. So no user, nor two or three of them, can fill the table before the others have come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::memserver {

// The places of one kind, and who has taken them.
struct Places {
  std::string what = {};       // "jobs", for texts
  uint32_t all = 0, used = 0;  // by all users
  uint32_t own = 0;            // by the user who asks for more
  uint32_t wanted = 1;         // how many more
  uint32_t uid = 0;            // that user
  uint32_t of_user_max = UINT32_MAX;
  bool is_limited = false;  // false for root and memserver's own user

  uint32_t few() const { return std::max(1U, all / 16); }
  // The last quarter, reserved for users who have few.
  uint32_t kept_for_others() const { return all / 4; }
};

// Ok if the user may have `wanted` more. Errors: kTooManySessions (not that many are left),
// kQuotaExceeded (more than one user may have, or the rest is reserved for others).
Status AdmitPlace(const Places& places);

}  // namespace tidepool::memserver
