#include "memserver/ready_line.h"

#include <string>

#include "base/log.h"
#include "base/units.h"
#include "memserver/probe/gpu_source.h"
#include "memserver/keeper/sd_notify.h"
#include "optim/kernels/isa.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {
namespace {

// The rate of one thread with the chosen kernel; 0 if it was not measured.
double RateAlone(const device::CopyTuning& tuning) {
  for (const device::CopyRate& rate : tuning.rates) {
    if (rate.kernel == tuning.chosen) return rate.bytes_per_second;
  }
  return 0;
}

}  // namespace

void LogReady(const ServerOptions& options, const Server& server, const KeptHolder& keeper) {
  const PoolFacts& pool = server.pool_facts();
  const Config& settings = options.settings;
  const device::CopyTuning& copies = server.copy_tuning();

  // Sockets, properties of the machine, and measurements.
  LogInfo("ready", {{"data_socket", shm::DataSocketPath(settings.socket_dir)},
                    {"admin_socket", shm::AdminSocketPath(settings.socket_dir)},
                    {"pool", LogBytes{server.pool_bytes()}},
                    {"adopted", server.adopted()},
                    {"keeper", keeper.Name()},
                    {"keeper_pid", keeper.keeper_pid()},
                    {"rcache_limit", LogBytes{options.rcache_limit}},
                    {"huge_pages", LogBytes{pool.huge_page_bytes}},
                    {"set_aside", pool.reserved_pages},
                    {"touch", LogSeconds{pool.touch_seconds}},
                    {"touch_threads", pool.touch_threads},
                    {"nodes", pool.nodes.size()},
                    // Updating and copying threads, and their rates.
                    {"pinned_workers", options.places.workers.size()},
                    {"isa", optim::NameOf(settings.optimizer.isa)},
                    {"adam_threads", settings.optimizer.threads},
                    {"copy", settings.copy.threads == 0 ? "serve loop" : "thread per session"},
                    {"copy_kernel", device::NameOf(copies.chosen)},
                    {"copy_threads", copies.threads},
                    {"copied", LogRate{RateAlone(copies)}},
                    {"copied_together", LogRate{copies.together_bytes_per_second}},
                    {"gpus", GpusLine(options.gpus)}});

  NotifyServiceManager("READY=1\nSTATUS=serving with a pool of " +
                       FormatBytes(server.pool_bytes()));
}

}  // namespace tidepool::memserver
