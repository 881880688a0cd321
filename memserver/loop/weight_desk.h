// WeightDesk: which weights that are on NVMe alone come into the windows of their jobs, and when
// (decision 027).
//
// One thread (the serve loop). In each turn it looks at what ranks wait for; that comes first, the
// ranks in turns, each with what it asked for first. Then what they are known to ask for next, as
// long as it takes the place of something that is needed later. What a rank waits for is never
// forgotten and never counted for one that has gone, because nothing of it is kept from turn to
// turn.
#pragma once

#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class WeightDesk {
 public:
  explicit WeightDesk(Tables* tables) : tables_(tables) {}

  // True when something was begun.
  bool Poll();
  // A rank waits for weights of the sealed version, which it is served before the next step is
  // sealed.
  static bool IsAwaited(const Job& job);

 private:
  static void FindAsked(Job* job);
  static bool FillAsked(Job* job);
  static bool FillAhead(Job* job);

  Tables* const tables_;
};

}  // namespace tidepool::memserver
