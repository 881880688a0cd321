// CheckHost: checks whether this machine fits the configuration. One finding a line, each with its
// remedy (`memserver check`).
//
// One thread. Changes nothing that lasts: no directory is made, no memory is taken.
#pragma once

#include <string>
#include <vector>

#include "memserver/server_options.h"

namespace tidepool::memserver {

// The severity of a finding.
enum class Verdict { kOk, kWarn, kFail };

// One line of the check.
struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string subject;  // "memory", "memlock", ...
  std::string text;     // one sentence with the numbers
  std::string remedy;   // empty if all is well
};

std::vector<Finding> CheckHost(const ServerOptions& options);
// "OK    memory    ..." lines, with the remedy below.
std::string Format(const std::vector<Finding>& findings);
// kExitOk, kExitFailed for warnings, kExitHostUnfit for failures.
int ExitCodeOf(const std::vector<Finding>& findings);

}  // namespace tidepool::memserver
