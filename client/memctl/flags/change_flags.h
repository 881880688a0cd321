// Flags of the memctl commands that change something: jobs, the log, states on NVMe, settings.
//
// One thread. A door to CLI11, like flags.cpp.
#pragma once

#include <string>

#include "client/memctl/flags/invocation.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tidepool::client {

// memctl job ACTION JOB [flags]
void AddJobCommand(CLI::App* app, Invocation* invocation);
// memctl logs level LEVEL [--for TIME]
void AddLogsCommand(CLI::App* app, Invocation* invocation);
// memctl nvme status|scrub|tune, memctl config show|diff|get|set|reload
void AddNvmeAndConfig(CLI::App* app, Invocation* invocation);
// Checks that --dry-run and --yes belong to a change. Returns the error, or "".
std::string WhyNoChange(const Invocation& invocation);

}  // namespace tidepool::client
