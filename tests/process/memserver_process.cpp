#include "tests/process/memserver_process.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tidepool::testing {

std::vector<std::string> MemserverCommand(const std::string& socket_dir, const std::vector<std::string>& more) {
  std::vector<std::string> command{TIDEPOOL_MEMSERVER, "run", "--socket-dir", socket_dir};
  // A setting that `more` gives must not be given twice.
  for (const auto& [flag, value] : {std::pair{"--pool", "32MiB"}, std::pair{"--rcache-limit", "32MiB"}, std::pair{"--lease", "0s"},
                                    std::pair{"--adam-threads", "1"}, std::pair{"--huge", "off"}, std::pair{"--keeper", "none"}}) {
    if (std::find(more.begin(), more.end(), flag) == more.end()) command.insert(command.end(), {flag, value});
  }
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

MemserverProcess::MemserverProcess(const std::vector<std::string>& more)
    : process_(std::make_unique<ChildProcess>(MemserverCommand(directory_.path(), more))) {
  TP_CHECK(process_->WaitForOutput("\"message\":\"ready\"", 30 * kNsPerSecond), process_->Output().c_str());
}

bool MemserverProcess::StopsCleanly() {
  process_->Signal(SIGTERM);
  const auto end = process_->Wait(kPromptNs);
  return end && end->exit_code == 0 && std::filesystem::is_empty(directory_.path());
}

}  // namespace tidepool::testing
