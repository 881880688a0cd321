// RunPrograms: other programs, all at once, with what they print: ssh to other machines, and
// memserver for what only it can do.
//
// One thread; blocks until all have ended. They read nothing, and are in memctl's process group:
// Ctrl-C ends them with it.
#pragma once

#include <string>
#include <vector>

namespace tidepool::client {

// How a program ended, and what it printed.
struct ProgramEnd {
  // 127: it could not be started (`errors` says why); 128 and the number of the signal that ended
  // it.
  int exit_code = 0;
  std::string output, errors;
};

// One for each command, in order. The program is searched in PATH unless its name has a slash.
std::vector<ProgramEnd> RunPrograms(const std::vector<std::vector<std::string>>& commands);

// The memserver beside this memctl; "memserver" (of PATH) where there is none.
std::string MemserverProgram();

}  // namespace tidepool::client
