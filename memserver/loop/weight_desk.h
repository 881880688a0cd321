// WeightDesk: decides which weights that are on NVMe alone are read into the windows of their jobs,
// and when (decision 027).
//
// One thread (the serve loop). In each turn it first serves the requests that ranks wait for, the
// ranks in turns, each in its own order. Then it reads ahead the chunks that ranks are known to
// fetch next, as long as they replace chunks that are needed later. A rank's wait is never
// forgotten, nor counted after the rank has gone, because no such state is kept from turn to turn.
#pragma once

#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class WeightDesk {
 public:
  explicit WeightDesk(Tables* tables) : tables_(tables) {}

  // True if it began something.
  bool Poll();
  // True if a rank waits for weights of the sealed version, which must be served before the next
  // step is sealed.
  static bool IsAwaited(const Job& job);

 private:
  static void FindAsked(Job* job);
  static bool FillAsked(Job* job);
  static bool FillAhead(Job* job);

  Tables* const tables_;
};

}  // namespace tidepool::memserver
