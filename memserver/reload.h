// Reload: what a configuration that is read again changes in a memserver that runs: all that it
// says, or nothing.
//
// One thread (main). PlanReload is a pure function; the serve loop applies the plan between two
// turns (ApplySettings), or refuses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "memserver/config/config.h"
#include "memserver/control/mailbox.h"

namespace tidepool::memserver {

// For /v1/config: each setting as it was given, and its origin.
std::shared_ptr<const ConfigRows> RowsOf(const LoadedConfig& loaded);

// What takes `now` to `wanted` in a pool of so many bytes.
// Errors: kConfigNeedsRestart, with the key and the place of every setting that does not change
// while memserver runs; kConfigBadValue, for quotas that do not fit together or the pool.
Result<ApplySettings> PlanReload(const LoadedConfig& now, const LoadedConfig& wanted,
                                 uint64_t pool_bytes);

class Server;

// Reads the configuration again, from the sources of the start, on request.
class Reloader {
 public:
  static constexpr int64_t kWaitMs = 1000;  // for the serve loop; less than the admin thread waits

  Reloader(ConfigSources sources, LoadedConfig now)
      : sources_(std::move(sources)), now_(std::move(now)) {}
  // Answers the ticket. Waits for the serve loop's verdict for at most kWaitMs.
  void Do(Server* server, const MainCommand& asked);
  const LoadedConfig& now() const { return now_; }

 private:
  Result<ApplySettings> Plan(Server* server) const;
  Result<ApplySettings> Apply(Server* server, const AdminCaller& caller);
  const ConfigSources sources_;
  LoadedConfig now_;
};

}  // namespace tidepool::memserver
