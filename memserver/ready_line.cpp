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

std::string PagesText(const PoolFacts& pool, bool adopted) {
  if (adopted) return "as they were";
  if (pool.huge_page_bytes == 0) return "4 KiB";
  return FormatBytes(pool.huge_page_bytes) + " in pages of 2 MiB" +
         (pool.reserved_pages ? ", set aside" : "");
}

// "1.20 s by 2 threads".
std::string TouchText(const PoolFacts& pool) {
  if (pool.touch_threads == 0) return "before";
  return FormatDuration(pool.touch_seconds) + " by " + std::to_string(pool.touch_threads) +
         (pool.touch_threads == 1 ? " thread" : " threads");
}

// "0: 1.00 GiB, 1: 1.00 GiB".
std::string NodesText(const PoolFacts& pool) {
  std::string text;
  for (const NodeShare& share : pool.nodes) {
    text +=
        (text.empty() ? "" : ", ") + std::to_string(share.node) + ": " + FormatBytes(share.bytes);
  }
  return text.empty() ? "unknown" : text;
}

}  // namespace

void LogReady(const ServerOptions& options, const Server& server, const KeptHolder& keeper) {
  const PoolFacts& pool = server.pool_facts();
  const Config& settings = options.settings;

  LogInfo("ready", {{"data_socket", shm::DataSocketPath(settings.socket_dir)},
                    {"admin_socket", shm::AdminSocketPath(settings.socket_dir)},
                    {"pool", FormatBytes(server.pool_bytes()) +
                                 (server.adopted() ? " of the server before" : "")},
                    {"keeper", keeper.Name()},
                    {"keeper_pid", keeper.keeper_pid()},
                    {"rcache_limit", FormatBytes(options.rcache_limit)},
                    // What the machine gave, and what was measured on it.
                    {"pages", PagesText(pool, server.adopted())},
                    {"touched", TouchText(pool)},
                    {"nodes", NodesText(pool)},
                    {"pinned_workers", options.places.workers.size()},
                    {"isa", optim::NameOf(settings.optimizer.isa)},
                    {"adam_threads", settings.optimizer.threads},
                    {"copy", settings.copy.threads == 0 ? "serve loop" : "thread per session"},
                    {"copy_kernel", device::Text(server.copy_tuning())},
                    {"gpus", GpusLine(options.gpus)}});
  NotifyServiceManager("READY=1\nSTATUS=serving with a pool of " +
                       FormatBytes(server.pool_bytes()));
}

}  // namespace tidepool::memserver
