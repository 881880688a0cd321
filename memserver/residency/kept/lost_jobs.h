// LostJobs: jobs with sealed steps that memserver had to give up, so that a run that would continue
// one is told so, and does not start anew.
//
// One thread (the serve loop). Bounded, and no user takes the places of others: at most
// kLostOfUserMax entries of one user, the latest; if kLostJobsMax is reached, the user with the
// most entries loses its oldest. Not kept: the next server starts with none.
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
  // Replaces an entry of the same name and user.
  void Note(LostJob job);
  // A job of this name has weights again, or ended in good order.
  void Forget(const std::string& name, uint32_t uid);
  const std::vector<LostJob>& all() const { return all_; }  // the oldest first

 private:
  void DropOldestOf(uint32_t uid);
  std::vector<LostJob> all_;
};

}  // namespace tidepool::memserver
