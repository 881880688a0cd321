// RunServer: the command `memserver run`: from settings to a serving daemon, and its orderly end.
//
// The main thread, before any other thread exists. Returns when the server has ended.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "memserver/config/config.h"

namespace tidepool::memserver {

// The events that end the server, besides signals, and the fate of kept jobs.
struct RunOptions {
  int parent_pid = 0;         // end when this process ends; 0: never
  int end_with_fd = -1;       // end when this pipe closes; -1: never
  bool discard_kept = false;  // give up the jobs that the keeper holds
};

// Serves until SIGTERM, SIGINT or the end of the parent (or of the terminal). A second signal ends
// the process at once; jobs that the first one left to the keeper stay there. SIGHUP reads
// `sources` again and applies the settings that may change at run time; `loaded` is their content
// at the start. Errors: those of Server::Start.
Status RunServer(const LoadedConfig& loaded, const ConfigSources& sources,
                 const RunOptions& options, Clock* clock);

}  // namespace tidepool::memserver
