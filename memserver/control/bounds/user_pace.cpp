#include "memserver/control/bounds/user_pace.h"

#include <algorithm>

#include "base/clock.h"
#include "base/planted.h"

namespace tidepool::memserver {

void UserPace::Spend(uint32_t uid, uint64_t work, int64_t now_ns) {
  if (users_.size() >= kUsersMax)
    std::erase_if(users_, [&](const auto& user) { return Left(user.second, now_ns) == 0; });
  Debt& debt = users_[uid];
  debt = {Left(debt, now_ns) + work, now_ns};
}

int64_t UserPace::PauseNs(uint32_t uid, int64_t now_ns) const {
  const auto found = users_.find(uid);
  const uint64_t left = found == users_.end() ? 0 : Left(found->second, now_ns);
  if (left < limits_.burst || TP_PLANTED("jobs.user_not_paced")) return 0;

  const double seconds =
      static_cast<double>(left - limits_.burst + 1) / static_cast<double>(limits_.per_second);
  return std::max(kNsPerMs, static_cast<int64_t>(seconds * kNsPerSecond));
}

uint64_t UserPace::Left(const Debt& debt, int64_t now_ns) const {
  const double seconds =
      static_cast<double>(std::max<int64_t>(now_ns - debt.at_ns, 0)) / kNsPerSecond;
  return debt.work - std::min(debt.work, static_cast<uint64_t>(
                                             seconds * static_cast<double>(limits_.per_second)));
}

}  // namespace tidepool::memserver
