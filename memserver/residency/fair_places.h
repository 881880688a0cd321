// Fair places: how many of something that is counted (jobs, ranks, places in the queue) one user
// may take, so that others always find some.
//
// Pure functions. A user has at most `of_user_max`. And the last quarter of all places is for users
// who have few (a sixteenth of all, at least one): a user who has more gets no further one there.
// So no user, nor two or three of them, can fill the table before the others have come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::memserver {

// The places of one kind, as they are taken.
struct Places {
  std::string what = {};       // "jobs", for texts
  uint32_t all = 0, used = 0;  // by everybody
  uint32_t own = 0;            // by the user who asks for more
  uint32_t wanted = 1;         // so many more
  uint32_t uid = 0;            // that user
  uint32_t of_user_max = UINT32_MAX;
  bool is_limited = false;  // not for root, nor for memserver's own user

  uint32_t few() const { return std::max(1U, all / 16); }
  // The last quarter, which is for users who have few.
  uint32_t kept_for_others() const { return all / 4; }
};

// May the user have `wanted` more? Errors: kTooManySessions (so many are not left), kQuotaExceeded
// (more than one user may have, or what is left is for others).
Status AdmitPlace(const Places& places);

}  // namespace tidepool::memserver
