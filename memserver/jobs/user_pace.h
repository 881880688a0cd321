// UserPace: how much of the control thread a user may have. Whatever clients send costs it work: packets, descriptions that are decoded,
// also those that are refused in the end. A user who makes more of it than a share waits until the share has grown again, with all of its
// connections; those of others are read meanwhile.
//
// One thread (control). Time is handed in. Work is counted in bytes that are decoded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "base/clock.h"
#include "base/planted.h"
#include "base/units.h"

namespace tidepool::memserver {

struct UserPaceLimits {
  uint64_t burst = 64 * kMiB;       // at once: all ranks of a large job, or the largest description that there may be
  uint64_t per_second = 32 * kMiB;  // ever after: a fraction of one CPU
};

class UserPace {
 public:
  static constexpr uint64_t kConnection = 16 * kKiB;  // work of one, from accept to close
  static constexpr uint64_t kPacket = 4 * kKiB;
  static constexpr uint64_t kAtDoor = 64 * kKiB;   // a packet with descriptors (descriptor_door.h)
  static constexpr uint64_t kBytesMovedAsOne = 8;  // bytes that are received and hashed, against those that are decoded

  explicit UserPace(const UserPaceLimits& limits = {}) : limits_(limits) {}

  void Spend(uint32_t uid, uint64_t work, int64_t now_ns) {
    if (users_.size() >= kUsersMax) std::erase_if(users_, [&](const auto& user) { return Left(user.second, now_ns) == 0; });
    Debt& debt = users_[uid];
    debt = {Left(debt, now_ns) + work, now_ns};
  }
  // How long its connections are not read; 0: they are.
  int64_t PauseNs(uint32_t uid, int64_t now_ns) const {
    const auto found = users_.find(uid);
    const uint64_t left = found == users_.end() ? 0 : Left(found->second, now_ns);
    if (left < limits_.burst || TP_PLANTED("jobs.user_not_paced")) return 0;
    const double seconds = static_cast<double>(left - limits_.burst + 1) / static_cast<double>(limits_.per_second);
    return std::max(kNsPerMs, static_cast<int64_t>(seconds * kNsPerSecond));
  }

 private:
  static constexpr size_t kUsersMax = 1024;  // from there on those without a debt are forgotten
  struct Debt {
    uint64_t work = 0;
    int64_t at_ns = 0;
  };
  uint64_t Left(const Debt& debt, int64_t now_ns) const {
    const double seconds = static_cast<double>(std::max<int64_t>(now_ns - debt.at_ns, 0)) / kNsPerSecond;
    return debt.work - std::min(debt.work, static_cast<uint64_t>(seconds * static_cast<double>(limits_.per_second)));
  }

  UserPaceLimits limits_;
  std::map<uint32_t, Debt> users_;
};

}  // namespace tidepool::memserver
