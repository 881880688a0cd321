// LogReady: the log line that describes a memserver that is ready, and READY=1 for a service
// manager.
//
// The main thread, once.
#pragma once

#include "memserver/keeper/kept_holder.h"
#include "memserver/server.h"

namespace tidepool::memserver {

void LogReady(const ServerOptions& options, const Server& server, const KeptHolder& keeper);

}  // namespace tidepool::memserver
