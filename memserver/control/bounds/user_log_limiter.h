// UserLogLimiter: bounds the log lines about one user's ranks and jobs: kLinesAtOnce, then one
// every kLineNs. The next line that is written says how many were left out.
//
// One thread per object. Tracks kUsers users; the one that was silent for longest is forgotten.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace tidepool::memserver {

class UserLogLimiter {
 public:
  // A job of 64 ranks that comes and goes writes about 200.
  static constexpr int64_t kLinesAtOnce = 256;
  static constexpr int64_t kLineNs = kNsPerSecond / 2;  // for each line beyond those
  // The number of lines about the user left out since the last one, if one may be written now; else
  // nothing.
  std::optional<uint64_t> Allow(uint32_t uid, int64_t now_ns) {
    User& user = UserOf(uid, now_ns);
    user.spent_until_ns = std::max(user.spent_until_ns, now_ns);
    if (user.spent_until_ns - now_ns > (kLinesAtOnce - 1) * kLineNs) {
      ++user.left_out;
      return std::nullopt;
    }
    user.spent_until_ns += kLineNs;
    return std::exchange(user.left_out, 0);
  }

 private:
  static constexpr size_t kUsers = 64;
  struct User {
    uint32_t uid = 0;
    bool known = false;
    // Each line moves this kLineNs ahead; the bound on how far ahead it may lie bounds a burst.
    int64_t spent_until_ns = 0;
    uint64_t left_out = 0;
  };
  User& UserOf(uint32_t uid, int64_t now_ns) {
    for (User& user : users_) {
      if (user.known && user.uid == uid) return user;
    }
    User& oldest =
        *std::min_element(users_.begin(), users_.end(), [](const User& a, const User& b) {
          return std::pair(a.known, a.spent_until_ns) < std::pair(b.known, b.spent_until_ns);
        });
    return oldest = User{uid, true, now_ns, 0};
  }
  std::array<User, kUsers> users_ = {};
};

}  // namespace tidepool::memserver
