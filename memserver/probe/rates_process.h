// RatesProcess: a process that measures this machine's rates into a file while nothing else needs
// the machine; RunMeasureRates is that process.
//
// One thread (main). The process is this program, executed again as `memserver measure-rates`. It
// runs at the lowest priority (SCHED_IDLE), and has its own memory and GPU contexts, so that ending
// it at any moment releases everything. It ends when the other end of its pipe closes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::memserver {

// The order for the process.
struct RatesOrder {
  std::string file;      // written atomically; left alone if it is of this machine
  uint32_t workers = 1;  // number of host workers for updates
  bool gpus = true;      // measure the GPUs that the driver shows, if any
};

// Converts an order to the words behind `measure-rates`, and back. Errors: kUsageError.
std::vector<std::string> WordsOf(const RatesOrder& order);
Result<RatesOrder> OrderOf(const std::vector<std::string>& words);

class RatesProcess {
 public:
  explicit RatesProcess(RatesOrder order) : order_(std::move(order)) {}
  RatesProcess(const RatesProcess&) = delete;
  RatesProcess& operator=(const RatesProcess&) = delete;
  ~RatesProcess() { Stop(); }

  // Starts the process. Errors: kKeeperFailed (no process). Requires that none runs.
  Status Start();
  // Once the process has ended: whether it succeeded. Never blocks.
  std::optional<bool> Ended();
  // Kills it and waits until it is gone; does nothing if none runs.
  void Stop();

 private:
  const RatesOrder order_;
  pid_t pid_ = -1;
  UniqueFd pipe_;
};

// The body of `memserver measure-rates FILE WORKERS gpus|host`, whose pipe is kInheritedFd. Returns
// the exit code.
int RunMeasureRates(const RatesOrder& order, Clock* clock);

}  // namespace tidepool::memserver
