// WaitingRank: a rank whose job waits for room, as AdmissionQueue holds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memserver/control/mailbox.h"
#include "memserver/residency/quota.h"

namespace tidepool::memserver {

struct WaitingRank {
  ReserveJob event;
  std::string account;
  Priority priority = Priority::kNormal;
  int64_t since_ns = 0;
  Status why;
  // It waits for room that its own job's last run held, which is being returned.
  bool comes_again = false;
  bool lacks_room = false;  // it had its turn; else it only waits behind others
  // Users, one entry for each of their jobs that passed it (queue_passing.h)
  std::vector<uint32_t> passed_by = {};
};

}  // namespace tidepool::memserver
