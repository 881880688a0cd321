#include "memserver/server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/event_queue.h"
#include "base/system/last_words.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/unique_fd.h"
#include "device/host/host_device.h"
#include "device/open_device.h"
#include "memserver/admin/admin_api.h"
#include "memserver/admin/admin_server.h"
#include "memserver/admin/snapshot_source.h"
#include "memserver/checkpoint/checkpoint_writer.h"
#include "memserver/config/config.h"
#include "memserver/former_servers.h"
#include "memserver/control/control_server.h"
#include "memserver/control/socket_directory.h"
#include "memserver/kept_memory.h"
#include "memserver/jobs/limits.h"
#include "memserver/loop/serve_loop.h"
#include "memserver/probe/topology_report.h"
#include "memserver/update/tuning.h"
#include "memserver/update/worker_team.h"
#include "memserver/version.h"
#include "shm/protocol.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {

// In order of construction; destroyed in reverse, after the threads have been joined.
struct Server::Rooms {
  SteadyClock clock;
  std::unique_ptr<SocketDirectory> directory;
  KeptMemory kept;
  FormerServers former;
  std::unique_ptr<NvmeTier> nvme;  // outlives the team, whose workers hold its staging
  EventQueue<ControlEvent> events;
  EventQueue<ControlReply> replies;
  EventQueue<SaveRequest> saves;
  EventQueue<SaveResult> saved;
  EventQueue<std::shared_ptr<const Snapshot>> snapshots;
  EventQueue<MainCommand> main_commands;
  EventQueue<KeepStates> keeps;
  UniqueFd ended{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<device::HostDevice> device;
  device::CopyTuning copy_tuning;
  std::unique_ptr<GpuTable> gpus;  // registers memory of the pool
  std::unique_ptr<WorkerTeam> team;
  std::unique_ptr<ServeLoop> loop;
  std::unique_ptr<CheckpointWriter> writer;  // reads from the loop's jobs: it ends before them
  std::unique_ptr<ControlServer> control;
  std::unique_ptr<SnapshotSource> source;
  std::unique_ptr<AdminApi> api;
  std::unique_ptr<AdminServer> admin;
  std::thread loop_thread, control_thread;
  std::atomic<bool> handed_over{false};  // set by the loop's thread at its end
  bool stopping = false;
};

namespace {

void NameThread(std::thread* thread, const char* name) {
  pthread_setname_np(thread->native_handle(), name);
}

// Sets the nice value of the calling thread. A user may always raise it, and lower it as far as
// RLIMIT_NICE says.
void BeNice(const char* thread, int nice) {
  if (setpriority(PRIO_PROCESS, 0, nice) != 0)
    LogDebug("a thread keeps its priority", {{"thread", thread}, {"nice", nice}});
}

// Undo areas for at least so many workers: a later server on the same memory may have more of them.
constexpr uint32_t kUndoWorkers = 64;

KeptMemoryOptions MemoryOptionsOf(const ServerOptions& options) {
  KeptMemoryOptions memory;
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

// Measures the tuning in pool memory that no job has and that was touched already.
optim::Tuning TuningFor(const ServerOptions& options, const WorkerTeam& team, HostPool* pool) {
  if (options.settings.optimizer.tuning) return *options.settings.optimizer.tuning;
  const TuningOptions tuning{.workers = team.threads(), .isa = team.isa()};
  const uint64_t free = std::min(pool->largest_free_bytes(), kTuningScratchWanted * tuning.workers);
  std::vector<Extent> scratch;
  if (free < kTuningScratchMin * tuning.workers ||
      !pool->Take(std::array{free / kPageBytes * kPageBytes}, &scratch))
    return {};
  const TuningResult result =
      MeasureTuning(tuning, {scratch.front().data, scratch.front().bytes}, SteadyClock());
  pool->Release(scratch);
  LogInfo("update tuned", {{"prefetch", result.tuning.prefetch_elements},
                           {"gain", result.gain},
                           {"rounds", result.rounds},
                           {"seconds", static_cast<double>(result.took_ns) / kNsPerSecond}});
  return result.tuning;
}

// Measures in a new pool, which is all zeros and stays so. An adopted pool holds jobs, and a
// restart is in a hurry: nothing is measured there.
device::CopyTuning TuneCopies(device::HostDevice* device, HostPool* pool, bool adopted) {
  if (adopted) return device->Tune({}, 0);
  const uint64_t free[] = {
      std::min(kTuneCopiesBytes, pool->largest_free_bytes() / kPageBytes * kPageBytes)};
  std::vector<Extent> scratch;
  if (free[0] < device::kTuneBytesMin || !pool->Take(free, &scratch)) return device->Tune({}, 0);
  const device::CopyTuning tuning =
      device->Tune({scratch[0].data, scratch[0].bytes}, kTuneCopiesNs);
  pool->Release(scratch);
  return tuning;
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

// Quotas for the actual pool: one that was taken over need not have the size that is asked for now.
// Its jobs are not given up for a configuration that does not fit them.
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

// Jobs that were taken over have waited for long enough, so nothing is measured for them.
std::unique_ptr<GpuTable> OpenGpus(const ServerOptions& options, const KeptMemory& kept) {
  auto gpus = std::make_unique<GpuTable>(options.gpus, kept.pool->mapped(), options.places.staging);
  if (options.settings.gpu.use == GpuUse::kAtStart && !TP_PLANTED("server.gpus_opened_late"))
    gpus->OpenAll(/*in_a_hurry=*/!kept.contents.jobs.empty());
  return gpus;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, KeptHolder* keeper) {
  auto rooms = std::make_unique<Rooms>();
  Rooms& r = *rooms;
  if (!r.ended.valid()) EndForWantOf("descriptor for an event");
  TP_ASSIGN_OR_RETURN(r.directory, SocketDirectory::Claim(options.settings.socket_dir));
  TP_ASSIGN_OR_RETURN(std::vector<HeldMemory> held, TakeKept(keeper));
  KeeperWatch watch(keeper, &held, &r.kept);
  // Before kept memory is adopted: its jobs may have states there, and a refusal is reported before
  // gigabytes are touched.
  TP_ASSIGN_OR_RETURN(r.nvme, OpenNvmeTier(options.settings.nvme, &r.clock));
  KeptMemoryOptions memory = MemoryOptionsOf(options);
  memory.needs_jobs = WhyNotNew(r.nvme.get());
  watch.Look();
  TP_ASSIGN_OR_RETURN(r.kept, OpenKeptMemory(memory, std::move(held), keeper));
  HostPool* pool = r.kept.pool.get();
  TP_ASSIGN_OR_RETURN(const uint32_t own, TakeOverFrom(&r.former, r.kept, &watch));
  r.device = std::make_unique<device::HostDevice>(device::HostDeviceOptions{
      .copy_threads = options.settings.copy.threads, .together = options.settings.copy.together});
  r.copy_tuning = TuneCopies(r.device.get(), pool, r.kept.adopted);
  const WorkerTeamOptions team{.threads = WorkersThatFit(options, *pool),
                               .cpus = options.places.WorkerCpus(),
                               .isa = options.settings.optimizer.isa};
  r.team = std::make_unique<WorkerTeam>(team, pool->own_records());
  r.writer = std::make_unique<CheckpointWriter>(&r.saves, &r.saved, &r.clock);
  const Parts parts{.clock = &r.clock,
                    .device = r.device.get(),
                    .pool = pool,
                    .index = r.kept.index.get(),
                    .team = r.team.get(),
                    .events = &r.events,
                    .replies = &r.replies,
                    .saves = &r.saves,
                    .saved = &r.saved,
                    .tier = r.nvme != nullptr ? r.nvme->tier.get() : nullptr,
                    .nvme_absent = r.nvme != nullptr ? r.nvme->absent : std::vector<Status>(),
                    .keeps = &r.keeps,
                    .own_server = own};
  LoopOptions loop = LoopOptionsOf(options);
  TP_RETURN_IF_ERROR(TakeQuotas(options, r.kept, &loop));
  r.loop = std::make_unique<ServeLoop>(parts, loop);
  TP_RETURN_IF_ERROR(r.loop->Recover(r.kept.contents, r.kept.states, r.former.living()));
  watch.Look();
  r.team->SetTuning(TuningFor(options, *r.team, pool));
  r.gpus = OpenGpus(options, r.kept);
  const ControlNeighbours neighbours{.device = r.device.get(),
                                     .to_loop = &r.events,
                                     .from_loop = &r.replies,
                                     .snapshots = &r.snapshots,
                                     .gpus = r.gpus.get()};
  TP_ASSIGN_OR_RETURN(r.control, ControlServer::Open(ControlOptionsOf(options), neighbours));
  AdminDoors doors{.socket_path = shm::AdminSocketPath(options.settings.socket_dir),
                   .access = options.access,
                   .metrics_listen = options.settings.admin.metrics_listen};
  r.source = std::make_unique<SnapshotSource>(&r.events, &r.clock);
  r.api = std::make_unique<AdminApi>(FactsOf(options, pool->facts()), r.source.get(),
                                     AdminMail{&r.events, &r.main_commands});
  TP_ASSIGN_OR_RETURN(r.admin, AdminServer::Start(std::move(doors), r.api.get()));
  TP_RETURN_IF_ERROR(r.directory->Open(options.access));

  std::unique_ptr<Server> server(new Server(std::move(rooms)));
  r.loop_thread = std::thread([&r] {
    BeNice("loop", kLoopNice);
    r.loop->Run();
    r.handed_over.store(r.loop->tables().handing_over, std::memory_order_release);
    const uint64_t one = 1;
    [[maybe_unused]] const auto n = write(r.ended.get(), &one, sizeof one);
  });
  r.control_thread = std::thread([&r] {
    BeNice("control", kListenNice);
    r.control->Run();
  });
  NameThread(&r.loop_thread, "tp-loop");
  NameThread(&r.control_thread, "tp-control");
  return server;
}

Server::Server(std::unique_ptr<Rooms> rooms) : rooms_(std::move(rooms)) {}

Server::~Server() {
  Stop();
  EndThreads();
}

void Server::EndThreads() {
  // The admin thread asks the loop for snapshots, so it ends first.
  rooms_->admin.reset();
  // The loop ends when the last job is down and says Stopped, which ends the control thread. Until
  // then it may wait for memory of GPUs to be let go of.
  for (std::array<pollfd, 2> entries{{{ended_fd(), POLLIN, 0}, {keeps_fd(), POLLIN, 0}}};
       rooms_->loop_thread.joinable();) {
    if (poll(entries.data(), entries.size(), -1) > 0 && entries[0].revents != 0) break;
    KeepStatesAsAsked(nullptr);
  }
  if (rooms_->loop_thread.joinable()) rooms_->loop_thread.join();
  if (rooms_->control_thread.joinable()) rooms_->control_thread.join();
  // Ends the preparation thread, which may still be zeroing pool memory, before the pool is
  // destroyed.
  rooms_->control.reset();
}

void Server::Stop(bool hand_over) {
  if (std::exchange(rooms_->stopping, true)) return;
  rooms_->events.Push(StopServing{hand_over});
}

bool Server::HandedOver() const {
  return rooms_->handed_over.load(std::memory_order_acquire);
}

std::vector<MemoryToHold> Server::kept_parts() const {
  return PartsOf(rooms_->kept);
}

bool Server::adopted() const {
  return rooms_->kept.adopted;
}

int Server::ended_fd() const {
  return rooms_->ended.get();
}
int Server::main_commands_fd() const {
  return rooms_->main_commands.event_fd();
}

std::vector<MainCommand> Server::TakeMainCommands() {
  std::vector<MainCommand> asked;
  rooms_->main_commands.ClearEvent();
  rooms_->main_commands.TakeAll(&asked);
  return asked;
}

int Server::keeps_fd() const {
  return rooms_->keeps.event_fd();
}

void Server::KeepStatesAsAsked(KeptHolder* keeper) {
  std::vector<KeepStates> asked;
  rooms_->keeps.ClearEvent();
  rooms_->keeps.TakeAll(&asked);
  std::vector<HeldMemory>& held = rooms_->kept.states;
  for (KeepStates& keep : asked) {
    std::erase_if(held, [&keep](const HeldMemory& one) { return one.slot == keep.slot; });
    const bool let_go = !keep.exported.valid();
    Status told = let_go && keeper != nullptr ? keeper->LetGo(keep.slot) : Status();
    if (!let_go) {
      held.push_back({keep.slot, std::move(keep.exported), 1});
      if (keeper != nullptr)
        told = keeper->Hold({keep.slot, held.back().fd.get(), held.back().bytes});
    }
    // A keeper that died is replaced, and the new one receives all that is held.
    if (!told.ok()) LogWarn(told.Line(), {{"slot", keep.slot}});
    rooms_->events.Push(StatesKept{.job = keep.job, .rank = keep.rank, .let_go = let_go});
  }
}

int Server::former_servers_fd() const {
  return rooms_->former.event_fd();
}

void Server::TendFormerServers() {
  const uint32_t ended = rooms_->former.TakeEnded();
  if (ended == 0) return;
  LogInfo("a memserver that was there before has ended",
          {{"left", std::popcount(rooms_->former.living())}});
  rooms_->events.Push(FormerServersEnded{ended});
}

void Server::Command(AdminCommand command) {
  rooms_->events.Push(std::move(command));
}

int Server::snapshot_fd() const {
  return rooms_->snapshots.event_fd();
}

void Server::PublishSnapshots() {
  rooms_->snapshots.ClearEvent();
  std::vector<std::shared_ptr<const Snapshot>> taken;
  if (rooms_->snapshots.TakeAll(&taken)) rooms_->source->Publish(std::move(taken.back()));
}

double Server::SilentSeconds() {
  return rooms_->source->Look().silent_seconds;
}

uint64_t Server::pool_bytes() const {
  return rooms_->kept.pool->total_bytes();
}
const device::CopyTuning& Server::copy_tuning() const {
  return rooms_->copy_tuning;
}
const PoolFacts& Server::pool_facts() const {
  return rooms_->kept.pool->facts();
}

}  // namespace tidepool::memserver
