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
  // For room that its own job's last run held, which is being given back.
  bool comes_again = false;
  bool lacks_room = false;  // it had its turn; else it only stands behind others
  // Users, for each job of theirs that passed it (queue_passing.h)
  std::vector<uint32_t> passed_by = {};
};

}  // namespace tidepool::memserver
