// LostJobs: jobs with sealed steps that memserver had to give up, so that a run that would go on
// with one is told, and does not begin anew.
//
// One thread (the serve loop). Bounded, and no user takes the places of others: at most
// kLostOfUserMax entries of one user, the latest; of kLostJobsMax in all the user with the most
// entries loses its oldest. It is memory of this server alone: the next one begins without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace tidepool::memserver {

inline constexpr size_t kLostJobsMax = 256;
inline constexpr size_t kLostOfUserMax = 32;

struct LostJob {
  std::string name;
  uint32_t uid = 0;
  Version version = 0;  // sealed steps
  int64_t at = 0;       // seconds since 1970
  std::string why;
};

class LostJobs {
 public:
  // In place of an entry of the same name and user.
  void Note(LostJob job);
  // A job of this name has weights again, or came to its end in good order.
  void Forget(const std::string& name, uint32_t uid);
  const std::vector<LostJob>& all() const { return all_; }  // the oldest first

 private:
  void DropOldestOf(uint32_t uid);
  std::vector<LostJob> all_;
};

}  // namespace tidepool::memserver
