#include "memserver/residency/fair_places.h"

#include "base/planted.h"

namespace tidepool::memserver {

Status AdmitPlace(const Places& places) {
  const std::string count = std::to_string(places.all) + " " + places.what;
  const uint64_t used = uint64_t{places.used} + places.wanted;
  const uint64_t own = uint64_t{places.own} + places.wanted;
  if (used > places.all) {
    const std::string taken = std::to_string(places.used) + " of " + count + " are taken";
    return Status(ErrorId::kTooManySessions,
                  taken + "; " + std::to_string(places.wanted) + " more cannot be had");
  }
  if (!places.is_limited || TP_PLANTED("jobs.one_user_takes_all")) return Status();

  const std::string has =
      "user " + std::to_string(places.uid) + " has " + std::to_string(places.own) + " of " + count;
  if (own > places.of_user_max)
    return Status(ErrorId::kQuotaExceeded, has + ", as many as one user may have");
  if (own <= places.few() || used <= places.all - places.kept_for_others()) return Status();
  return Status(ErrorId::kQuotaExceeded,
                has + "; the last " + std::to_string(places.kept_for_others()) +
                    " are kept for users with fewer than " + std::to_string(places.few()));
}

}  // namespace tidepool::memserver
