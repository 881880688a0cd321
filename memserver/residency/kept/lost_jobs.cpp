#include "memserver/residency/kept/lost_jobs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/planted.h"

namespace tidepool::memserver {

void LostJobs::Note(LostJob job) {
  Forget(job.name, job.uid);
  std::map<uint32_t, size_t> of_user;
  for (const LostJob& each : all_) ++of_user[each.uid];
  const auto fewer = [](const auto& one, const auto& other) { return one.second < other.second; };

  if (of_user[job.uid] >= kLostOfUserMax) {
    DropOldestOf(job.uid);
  } else if (all_.size() >= kLostJobsMax) {
    DropOldestOf(TP_PLANTED("jobs.lost_of_others_dropped")
                     ? all_.front().uid
                     : std::max_element(of_user.begin(), of_user.end(), fewer)->first);
  }
  all_.push_back(std::move(job));
}

void LostJobs::Forget(const std::string& name, uint32_t uid) {
  std::erase_if(all_, [&](const LostJob& job) { return job.name == name && job.uid == uid; });
}

void LostJobs::DropOldestOf(uint32_t uid) {
  const auto oldest =
      std::find_if(all_.begin(), all_.end(), [uid](const LostJob& job) { return job.uid == uid; });
  if (oldest != all_.end()) all_.erase(oldest);
}

}  // namespace tidepool::memserver
