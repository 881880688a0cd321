#include "memserver/server_rooms.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "device/open_device.h"
#include "memserver/jobs/limits.h"
#include "memserver/probe/start_tuning.h"
#include "memserver/probe/topology_report.h"
#include "memserver/version.h"
#include "shm/protocol.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {
namespace {

void NameThread(std::thread* thread, const char* name) {
  pthread_setname_np(thread->native_handle(), name);
}

// Sets the nice value of the calling thread. A user may always raise it, and may lower it as far as
// RLIMIT_NICE allows.
void BeNice(const char* thread, int nice) {
  if (setpriority(PRIO_PROCESS, 0, nice) != 0)
    LogDebug("a thread keeps its priority", {{"thread", thread}, {"nice", nice}});
}

// Undo areas for at least this many workers: a later server on this memory may have more.
constexpr uint32_t kUndoWorkers = 64;

KeptMemoryOptions MemoryOptionsOf(const ServerOptions& options, const Clock* clock) {
  KeptMemoryOptions memory;
  memory.pool.clock = clock;
  memory.pool.bytes = options.pool_bytes;
  memory.pool.own_bytes =
      WorkerTeam::UndoBytes(std::max(options.settings.optimizer.threads, kUndoWorkers));

  memory.pool.huge_pages = options.settings.pool.huge_pages;
  memory.pool.reserved_pages = options.settings.pool.reserved_pages;
  if (options.places.bind_pool) {
    memory.pool.nodes = options.places.pool_nodes;
    memory.pool.interleave = options.places.spread == device::PoolSpread::kInterleave;
    memory.pool.piece_bytes_max = options.places.PieceBytes(
        memory.pool.bytes + memory.pool.own_bytes, memory.pool.piece_bytes_max);
  }
  memory.pool.progress = options.progress;
  memory.discard_kept = options.discard_kept;
  return memory;
}

uint32_t WorkersThatFit(const ServerOptions& options, const HostPool& pool) {
  uint32_t threads = options.settings.optimizer.threads;
  while (threads > 1 && WorkerTeam::UndoBytes(threads) > pool.own_records().size()) --threads;
  if (threads < options.settings.optimizer.threads)
    LogWarn("the kept memory has undo areas for fewer workers", {{"workers", threads}});
  return threads;
}

ServerFacts FactsOf(const ServerOptions& options, const PoolFacts& pool) {
  return {.version = kReleaseVersion,
          .abi = shm::kOwnProtocols.highest,
          .build = kBuild,
          .devices = device::DeviceNames(),
          .socket_dir = options.settings.socket_dir,
          .pid = getpid(),
          .topology = TopologyReport(options.topology, options.places, &pool),
          .config_schema = ConfigSchema()};
}

// Resolves quotas for the actual pool: an adopted pool may have another size than the configured
// one. Its jobs are not given up for a configuration that does not fit them.
Status TakeQuotas(const ServerOptions& options, const KeptMemory& kept, LoopOptions* loop) {
  const uint64_t pool_bytes = kept.pool->total_bytes();
  TP_ASSIGN_OR_RETURN(loop->live.quota_fallback,
                      ResolveFallback(options.settings.quota.fallback, pool_bytes));
  const Status sound = CheckQuotas(options.settings.quota.entries, pool_bytes);
  if (!sound.ok() && !kept.adopted) return sound;
  if (!sound.ok())
    LogWarn("the quotas do not fit the pool that was taken over", {{"why", sound.Line()}});
  auto rules = ResolveQuotas(options.settings.quota.entries, pool_bytes);
  if (rules.ok()) loop->quotas = std::move(rules).value();
  return Status();
}

LoopOptions LoopOptionsOf(const ServerOptions& options) {
  LoopOptions loop;
  loop.live = options.settings.live;
  loop.limits = options.settings.limits;
  loop.times = options.settings.times;
  loop.await_ns_min = kAwaitNsMin;
  loop.await_ns_max = kAwaitNsMax;
  loop.rcache_limit = options.rcache_limit;
  loop.random_tokens = true;
  loop.owner = options.access.owner;
  loop.config = options.config;

  return loop;
}

ControlOptions ControlOptionsOf(const ServerOptions& options) {
  return {.socket_dir = options.settings.socket_dir,
          .access = options.access,
          .connections_max = 2 * options.settings.limits.sessions_max,
          .user_connections_max = 2 * options.settings.limits.user_sessions_max};
}

}  // namespace

Result<uint32_t> ServerRooms::OpenMemory(const ServerOptions& options,
                                         std::vector<HeldMemory>* held, KeptHolder* keeper,
                                         KeeperWatch* watch) {
  // Before kept memory is adopted: its jobs may have states there, and an error is reported before
  // gigabytes are touched.
  TP_ASSIGN_OR_RETURN(nvme, OpenNvmeTier(options.settings.nvme, clock));
  KeptMemoryOptions memory = MemoryOptionsOf(options, clock);
  memory.needs_jobs = WhyNotNew(nvme.get());
  watch->Look();
  TP_ASSIGN_OR_RETURN(kept, OpenKeptMemory(memory, std::move(*held), keeper));
  return TakeOverFrom(&former, kept, watch, clock);
}

void ServerRooms::MakeWorkers(const ServerOptions& options) {
  const CopySettings& copy = options.settings.copy;
  device = std::make_unique<device::HostDevice>(device::HostDeviceOptions{
      .clock = clock, .copy_threads = copy.threads, .together = copy.together});
  copy_tuning = TuneCopies(device.get(), kept.pool.get(), kept.adopted);

  const WorkerTeamOptions workers{.threads = WorkersThatFit(options, *kept.pool),
                                  .cpus = options.places.WorkerCpus(),
                                  .isa = options.settings.optimizer.isa,
                                  .clock = clock};
  team = std::make_unique<WorkerTeam>(workers, kept.pool->own_records());
  writer = std::make_unique<CheckpointWriter>(&saves, &saved, clock);
}

Status ServerRooms::MakeLoop(const ServerOptions& options, uint32_t own_server) {
  const LoopNeighbours neighbours{
      .clock = clock,
      .device = device.get(),
      .pool = kept.pool.get(),
      .index = kept.index.get(),
      .team = team.get(),
      // Its queues.
      .events = &events,
      .replies = &replies,
      .saves = &saves,
      .saved = &saved,
      // States outside the pool.
      .tier = nvme != nullptr ? nvme->tier.get() : nullptr,
      .nvme_absent = nvme != nullptr ? nvme->absent : std::vector<Status>(),
      .keeps = &keeps,
      .own_server = own_server};

  LoopOptions loop_options = LoopOptionsOf(options);
  TP_RETURN_IF_ERROR(TakeQuotas(options, kept, &loop_options));
  loop = std::make_unique<ServeLoop>(neighbours, loop_options);
  return loop->Recover(kept.contents, kept.states, former.living());
}

void ServerRooms::OpenGpus(const ServerOptions& options) {
  gpus = std::make_unique<GpuTable>(options.gpus, kept.pool->mapped(), options.places.staging);
  // Adopted jobs have waited long enough, so nothing is measured.
  if (options.settings.gpu.use == GpuUse::kAtStart && !TP_PLANTED("server.gpus_opened_late"))
    gpus->OpenAll(/*in_a_hurry=*/!kept.contents.jobs.empty());
}

Status ServerRooms::OpenSockets(const ServerOptions& options) {
  const ControlNeighbours neighbours{.clock = clock,
                                     .device = device.get(),
                                     .to_loop = &events,
                                     .from_loop = &replies,
                                     .snapshots = &snapshots,
                                     .gpus = gpus.get()};
  TP_ASSIGN_OR_RETURN(control, ControlServer::Open(ControlOptionsOf(options), neighbours));

  AdminDoors doors{.socket_path = shm::AdminSocketPath(options.settings.socket_dir),
                   .access = options.access,
                   .metrics_listen = options.settings.admin.metrics_listen};
  source = std::make_unique<SnapshotSource>(&events, clock);
  api = std::make_unique<AdminApi>(FactsOf(options, kept.pool->facts()), source.get(),
                                   AdminMail{&events, &main_commands});
  TP_ASSIGN_OR_RETURN(admin, AdminServer::Start(std::move(doors), api.get()));
  return directory->Open(options.access);
}

void ServerRooms::StartThreads() {
  loop_thread = std::thread([this] {
    BeNice("loop", kLoopNice);
    loop->Run();
    handed_over.store(loop->tables().handing_over, std::memory_order_release);
    const uint64_t one = 1;
    [[maybe_unused]] const auto n = write(ended.get(), &one, sizeof one);
  });

  control_thread = std::thread([this] {
    BeNice("control", kListenNice);
    control->Run();
  });
  NameThread(&loop_thread, "tp-loop");
  NameThread(&control_thread, "tp-control");
}

}  // namespace tidepool::memserver
