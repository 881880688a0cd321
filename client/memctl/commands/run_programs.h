// RunPrograms: runs other programs in parallel and collects their output: ssh to other machines,
// and memserver.
//
// One thread; blocks until all have ended. They have no input and are in memctl's process group:
// Ctrl-C ends them, too.
#pragma once

#include <string>
#include <vector>

namespace tidepool::client {

// How a program ended, and its output.
struct ProgramEnd {
  // 127: it could not be started (`errors` has the reason); 128 + n: killed by signal n.
  int exit_code = 0;
  std::string output, errors;
};

// One result per command, in order. The program is searched in PATH unless its name has a slash.
std::vector<ProgramEnd> RunPrograms(const std::vector<std::vector<std::string>>& commands);

// The memserver beside this memctl; else "memserver", from PATH.
std::string MemserverProgram();
// The same of any program of this release.
std::string OwnProgram(const std::string& name);

}  // namespace tidepool::client
