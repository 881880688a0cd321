#include "memserver/server_options.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/system/system_memory.h"
#include "base/units.h"
#include "memserver/jobs/limits.h"
#include "memserver/probe/gpu_source.h"
#include "memserver/probe/topology_report.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {
namespace {

uint32_t AllowedCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

Result<device::Topology> TopologyOf(const Config& config) {
  return config.topology_file.empty() ? device::ReadTopology()
                                      : device::ReadTopologyFile(config.topology_file);
}

device::PlaceWishes WishesOf(const Config& config, uint32_t workers, uint32_t cpus) {
  return {.pool_nodes = config.pool.nodes,
          .worker_cpus = config.optimizer.cpus,
          .spread = config.pool.spread,
          .workers = workers,
          .pin = cpus > 2 * kFewCores};
}

// One per CPU, less one for the serve loop.
uint32_t WorkersFor(uint32_t cpus) {
  return std::max(1U, cpus - 1);
}

// One user may use everything in private mode, and half in service mode.
void ResolveLimits(bool is_service, LimitSettings* limits) {
  if (limits->user_jobs_max == kAutomatic && is_service) limits->user_jobs_max = 0;
  if (limits->user_sessions_max != kAutomatic) return;
  limits->user_sessions_max =
      is_service ? std::max(1U, limits->sessions_max / 2) : limits->sessions_max;
}

}  // namespace

// The topology of a machine in a file, with as many workers as a memserver would have there.
Result<std::string> PlannedTopology(const Config& config) {
  TP_ASSIGN_OR_RETURN(const device::Topology topology, TopologyOf(config));
  uint32_t cpus = 0;
  for (const device::NumaNode& node : topology.nodes)
    cpus += static_cast<uint32_t>(node.cpus.size());
  const uint32_t threads = config.optimizer.threads;
  const uint32_t workers = threads != kAutomatic ? threads : WorkersFor(cpus);
  TP_ASSIGN_OR_RETURN(const device::Places places,
                      device::PlanPlaces(topology, WishesOf(config, workers, cpus)));
  return TopologyReport(topology, places, nullptr);
}

Result<ServerOptions> ResolveOptions(const Config& config, Clock* clock) {
  const MemoryBudget budget = ReadMemoryBudget();
  const uint32_t cpus = AllowedCpus();
  ServerOptions options;
  options.settings = config;
  Config& settings = options.settings;
  if (settings.socket_dir.empty()) settings.socket_dir = shm::DefaultSocketDir();
  TP_ASSIGN_OR_RETURN(options.pool_bytes,
                      ParseSizeOrShare(settings.pool.size, budget.bytes_available));
  TP_ASSIGN_OR_RETURN(options.rcache_limit,
                      ParseSizeOrShare(settings.rcache_limit, budget.bytes_available));

  if (settings.optimizer.threads == kAutomatic) settings.optimizer.threads = WorkersFor(cpus);
  // With few CPUs a copy thread would only compete with the loop.
  if (settings.copy.threads == kAutomatic)
    settings.copy.threads = cpus > kFewCores ? std::clamp(cpus / 4, 1U, kCopyThreadsMax) : 0;
  TP_ASSIGN_OR_RETURN(options.topology, TopologyOf(settings));
  TP_ASSIGN_OR_RETURN(
      options.places,
      device::PlanPlaces(options.topology, WishesOf(settings, settings.optimizer.threads, cpus)));
  if (settings.gpu.use != GpuUse::kNone) options.gpus = CudaGpus(settings.gpu.done, clock);

  const AccessSettings& admin = settings.admin;
  if (admin.is_service) {
    TP_ASSIGN_OR_RETURN(options.access, ServiceAccess(admin.group, admin.operator_group));
  }
  ResolveLimits(admin.is_service, &settings.limits);
  return options;
}

}  // namespace tidepool::memserver
