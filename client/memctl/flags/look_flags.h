// LookFlags: memctl's commands that look: at rates, checks and events, and for a while (record,
// report, timeline).
//
// One thread. A door to CLI11, as flags.cpp is.
#pragma once

#include <string>

#include "client/memctl/flags/invocation.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tidepool::client {

// A word of the command line, and what it does.
struct Word {
  const char* name;
  const char* help;
};

// Adds these commands to memctl.
void AddLookCommands(CLI::App* app, Invocation* invocation);
// memctl checkpoint list|verify|diff|prune
void AddCheckpointCommand(CLI::App* app, Invocation* invocation);
// --by of residency and record.
void AddBy(CLI::App* sub, Invocation* invocation);
// Commands that write what they have seen to a file.
bool LooksForAWhile(const std::string& command);

}  // namespace tidepool::client
