#include "memserver/server.h"

#include <poll.h>

#include <array>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "base/system/last_words.h"
#include "base/log.h"
#include "memserver/probe/start_tuning.h"
#include "memserver/server_rooms.h"

namespace tidepool::memserver {

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, KeptHolder* keeper,
                                              Clock* clock) {
  auto rooms = std::make_unique<ServerRooms>(clock);
  ServerRooms& r = *rooms;
  if (!r.ended.valid()) DieOutOf("descriptor for an event");
  TP_ASSIGN_OR_RETURN(r.directory, SocketDirectory::Claim(options.settings.socket_dir, clock));
  TP_ASSIGN_OR_RETURN(std::vector<HeldMemory> held, TakeKept(keeper, clock));
  KeeperWatch watch(keeper, &held, &r.kept);
  TP_ASSIGN_OR_RETURN(const uint32_t own, r.OpenMemory(options, &held, keeper, &watch));
  r.MakeWorkers(options);
  TP_RETURN_IF_ERROR(r.MakeLoop(options, own));

  watch.Look();
  const std::optional<optim::Tuning>& given = options.settings.optimizer.tuning;
  r.team->SetTuning(given ? *given : TuneUpdates(*r.team, r.kept.pool.get(), *clock));
  r.OpenGpus(options);
  TP_RETURN_IF_ERROR(r.OpenSockets(options));

  std::unique_ptr<Server> server(new Server(std::move(rooms)));
  r.StartThreads();
  return server;
}

Server::Server(std::unique_ptr<ServerRooms> rooms) : rooms_(std::move(rooms)) {}

Server::~Server() {
  Stop();
  EndThreads();
}

void Server::EndThreads() {
  // The admin thread asks the loop for snapshots, so it ends first.
  rooms_->admin.reset();
  // The loop ends when the last job is down, and sends Stopped, which ends the control thread.
  // Until then it may wait for GPU memory to be released.
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
    // A dead keeper is replaced, and the new one receives everything that is held.
    if (!told.ok()) LogWarn(told.Line(), {{"slot", keep.slot}});
    rooms_->events.Push(StatesKept{.job = keep.job, .rank = keep.rank, .let_go = let_go});
  }
}

int Server::former_servers_fd() const {
  return rooms_->former.event_fd();
}

void Server::PollFormerServers() {
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

bool Server::MayHaveJobs() {
  const SnapshotLook look = rooms_->source->Look();
  return look.snapshot == nullptr || !look.snapshot->jobs.empty();
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
