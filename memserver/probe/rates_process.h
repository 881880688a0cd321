// RatesProcess: a process that measures this machine's rates into a file while nothing else needs
// the machine; RunMeasureRates is that process.
//
// One thread (main). The process is this program, executed again as `memserver measure-rates`. It
// runs below all others (SCHED_IDLE), has its own memory and, of GPUs, its own contexts, so that
// ending it at any moment gives everything back. It ends when the other end of its pipe closes.
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

// What the process is told.
struct RatesOrder {
  std::string file;      // that it writes, atomically, and leaves alone where it is this machine's
  uint32_t workers = 1;  // that update on the host
  bool gpus = true;      // measure with the GPUs that the driver shows, where there are any
};

// The order as the words behind `measure-rates`, and back. Errors: kUsageError.
std::vector<std::string> WordsOf(const RatesOrder& order);
Result<RatesOrder> OrderOf(const std::vector<std::string>& words);

class RatesProcess {
 public:
  explicit RatesProcess(RatesOrder order) : order_(std::move(order)) {}
  RatesProcess(const RatesProcess&) = delete;
  RatesProcess& operator=(const RatesProcess&) = delete;
  ~RatesProcess() { Stop(); }

  // Errors: kKeeperFailed (no process). Requires that none runs.
  Status Start();
  // Whether the process has ended well, once it has ended. Never blocks.
  std::optional<bool> Ended();
  // Kills it and waits until it is gone; harmless when none runs.
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
