// LookFlags: memctl's read-only commands: rates, checks and events, and sampling for a while
// (record, report, timeline).
//
// One thread. A door to CLI11, like flags.cpp.
#pragma once

#include <string>

#include "client/memctl/flags/invocation.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tidepool::client {

// A word of the command line, and its help text.
struct Word {
  const char* name;
  const char* help;
};

// Adds these commands to memctl.
void AddLookCommands(CLI::App* app, Invocation* invocation);
// memctl checkpoint list|verify|diff|prune
void AddCheckpointCommand(CLI::App* app, Invocation* invocation);
// memctl snapshot JOB --to DIR
void AddSnapshotCommand(CLI::App* app, Invocation* invocation);
// --by of residency and record.
void AddBy(CLI::App* sub, Invocation* invocation);
// True for commands that write samples to a file.
bool LooksForAWhile(const std::string& command);

}  // namespace tidepool::client
