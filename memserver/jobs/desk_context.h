// DeskContext: what every component of JobDesk reads.
//
// One thread (the serve loop). JobDesk makes it; everything named here outlives the components that
// receive it.
#pragma once

#include <utility>

#include "memserver/jobs/commands/admin_settings.h"
#include "memserver/jobs/tables.h"
#include "memserver/jobs/user_log.h"
#include "memserver/jobs/wake_ups.h"

namespace tidepool::memserver {

struct DeskContext {
  const LoopNeighbours& neighbours;
  const LoopOptions& options;
  Tables* tables;
  const AdminSettings& settings;
  WakeUps<RoomChange>* room_changes;
  UserLog* log;

  // Sends a reply to the control thread.
  template <typename Reply>
  void Send(Reply reply) const {
    neighbours.replies->Push(ControlReply(std::move(reply)));
  }
};

}  // namespace tidepool::memserver
