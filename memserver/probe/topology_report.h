// TopologyReport: the machine, its planned placements and the pool's actual location, as the answer
// of /v1/topology.
//
// Any thread; pure.
#pragma once

#include <string>

#include "device/places.h"
#include "device/topology.h"
#include "memserver/residency/pool/host_pool.h"

namespace tidepool::memserver {

// `pool` is null if no pool exists (`memserver check`). docs/admin_api.md lists every field.
std::string TopologyReport(const device::Topology& topology, const device::Places& places,
                           const PoolFacts* pool);
// One line for people: "2 NUMA nodes, pool interleaved on 0-1, workers on CPUs 3,7, staging of
// 0000:16:00.0 on node 0".
std::string PlacesLine(const device::Topology& topology, const device::Places& places);

}  // namespace tidepool::memserver
