// ServerOptions: the start parameters of a server: the settings, and their meaning on this machine.
//
// Any thread; values, and functions that only read the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "device/places.h"
#include "device/topology.h"
#include "memserver/config/config.h"
#include "memserver/control/access.h"
#include "memserver/residency/snapshot.h"
#include "memserver/traffic/gpu.h"

namespace tidepool::memserver {

struct ServerOptions {
  Config settings;  // with every kAutomatic and default path resolved

  // The meaning of the settings on this machine.
  uint64_t pool_bytes = 0;
  uint64_t rcache_limit = 0;
  device::Topology topology;  // what `places` was planned for; shown to people
  device::Places places;
  Access access = PrivateAccess();                // who may connect
  std::shared_ptr<const ConfigRows> config = {};  // what /v1/config shows
  // The GPUs whose memory ranks may bring; none: no GPU is used.
  GpuSource gpus = {};
  bool discard_kept = false;  // give up what the keeper holds
  // Called while the pool is touched, on the calling thread.
  std::function<void(uint64_t bytes_touched, uint64_t bytes_total)> progress;
};

// Resolves shares to bytes, and kAutomatic to numbers. `clock` is for the GPU probes, and outlives
// the options. Errors: kConfigBadValue, and those of ReadTopology and PlanPlaces.
Result<ServerOptions> ResolveOptions(const Config& config, Clock* clock);
// The machine, or that of `config.topology_file`, and the placements planned for it, in the form of
// /v1/topology. Errors: those of ReadTopology and PlanPlaces.
Result<std::string> PlannedTopology(const Config& config);

}  // namespace tidepool::memserver
