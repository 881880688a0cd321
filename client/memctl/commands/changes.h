// Changes: the memctl commands that change or end something.
//
// One thread; blocks as described in commands.h. For their previews: previews.h.
#pragma once

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// A command that changes something.
struct ChangeWord {
  const char* command;
  const char* action;  // empty: the command has none
  bool asks = false;   // irreversible: asks a person at a terminal first
};
// Null if the command changes nothing: it then takes neither --dry-run nor --yes. (`api` sends what
// it is given, and is not included.)
const ChangeWord* FindChange(const Invocation& invocation);
// The words that may follow "memctl", for people.
std::string ListChanges();

// Errors of all functions: those of Ask, and the server's answer.
Result<Shown> RunJob(const Invocation& invocation, const Style& style);
Result<Shown> RunDrain(const Invocation& invocation, const Style& style);
Result<Shown> RunUndrain(const Invocation& invocation, const Style& style);
Result<Shown> RunShutdown(const Invocation& invocation, const Style& style);
Result<Shown> RunLogs(const Invocation& invocation, const Style& style);
// Mutes a health check, or unmutes it.
Result<Shown> RunMute(const Invocation& invocation);
Result<Shown> RunScrub(const Invocation& invocation);
// Reports which settings have changed.
Result<Shown> RunReload(const Invocation& invocation);

}  // namespace tidepool::client
