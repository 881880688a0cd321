#include "memserver/residency/fair_places.h"

#include "base/planted.h"

namespace tidepool::memserver {

Status AdmitPlace(const Places& places) {
  const std::string count = std::to_string(places.all) + " " + places.what;
  if (places.used >= places.all) return Status(ErrorId::kTooManySessions, "there are " + count + " already, as many as there may be");
  if (!places.is_limited || TP_PLANTED("jobs.one_user_takes_all")) return Status();

  const std::string has = "user " + std::to_string(places.uid) + " has " + std::to_string(places.own) + " of " + count;
  if (places.own >= places.of_user_max) return Status(ErrorId::kQuotaExceeded, has + ", as many as one user may have");
  if (places.own < places.few() || places.used < places.all - places.kept_for_others()) return Status();
  return Status(ErrorId::kQuotaExceeded, has + "; the last " + std::to_string(places.kept_for_others()) +
                                             " are kept for users with fewer than " + std::to_string(places.few()));
}

}  // namespace tidepool::memserver
