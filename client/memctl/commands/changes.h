// Changes: the commands of memctl that change or end something.
//
// One thread; blocks as commands.h says. What they would do without doing it: previews.h.
#pragma once

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// A command that changes something.
struct ChangeWord {
  const char* command;
  const char* action;  // empty: the command has none
  bool asks = false;   // what it does cannot be taken back: a person at a terminal is asked first
};
// Null where the command changes nothing: then it takes neither --dry-run nor --yes. (`api` sends
// what it is given, and is not among them.)
const ChangeWord* FindChange(const Invocation& invocation);
// The words that may follow "memctl", for people.
std::string ListChanges();

// Errors of all: those of Ask, and what the server answered.
Result<Shown> RunJob(const Invocation& invocation, const Style& style);
Result<Shown> RunDrain(const Invocation& invocation, const Style& style);
Result<Shown> RunUndrain(const Invocation& invocation, const Style& style);
Result<Shown> RunShutdown(const Invocation& invocation, const Style& style);
Result<Shown> RunLogs(const Invocation& invocation, const Style& style);
// Mutes a check of the health, or unmutes it.
Result<Shown> RunMute(const Invocation& invocation);
Result<Shown> RunScrub(const Invocation& invocation);
// Says which settings are different now.
Result<Shown> RunReload(const Invocation& invocation);

}  // namespace tidepool::client
