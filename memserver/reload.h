// Reload: applies a reloaded configuration to a running memserver, wholly or not at all.
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

// For /v1/config: each setting as given, and its origin.
std::shared_ptr<const ConfigRows> RowsOf(const LoadedConfig& loaded);

// The changes from `now` to `wanted` in a pool of `pool_bytes`. Errors: kConfigNeedsRestart, with
// the key and the place of every changed setting that needs a restart; kConfigBadValue, for quotas
// that do not fit together or the pool.
Result<ApplySettings> PlanReload(const LoadedConfig& now, const LoadedConfig& wanted,
                                 uint64_t pool_bytes);

class Server;

// Reloads the configuration on request, from the sources of the start.
class Reloader {
 public:
  static constexpr int64_t kWaitMs = 1000;  // for the serve loop; less than the admin thread waits

  Reloader(ConfigSources sources, LoadedConfig now)
      : sources_(std::move(sources)), now_(std::move(now)) {}
  // Reloads and answers the ticket. Waits for the serve loop's verdict for at most kWaitMs.
  void Do(Server* server, const MainCommand& asked);
  const LoadedConfig& now() const { return now_; }

 private:
  Result<ApplySettings> Plan(Server* server) const;
  Result<ApplySettings> Apply(Server* server, const AdminCaller& caller);
  const ConfigSources sources_;
  LoadedConfig now_;
};

}  // namespace tidepool::memserver
