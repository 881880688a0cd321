#include "memserver/kept_memory.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "memserver/update/worker_team.h"

namespace tidepool::memserver {
namespace {

// A server that has just died may not have closed its connection to the keeper yet.
constexpr int64_t kTakeTimeoutNs = 2 * kNsPerSecond;
constexpr int64_t kTakePauseNs = 10 * kNsPerMs;

// Without a source of randomness: a value that differs from that of any recent server.
uint64_t RandomNonce() {
  uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
    nonce = static_cast<uint64_t>(WallSeconds()) << 32 | static_cast<uint64_t>(getpid());
  return nonce;
}

// True for the content of a released slot. (The size of GPU memory does not show in its
// descriptor.)
bool IsNothing(const UniqueFd& fd) {
  struct stat about {};
  return fstat(fd.get(), &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 0;
}

// A resource that the system refuses now may be available to the next server; only inconsistent
// memory will never be usable again.
bool IsDamage(const Status& status) {
  return status.id() == ErrorId::kKeptMemoryBad ||
         (!status.ok() && TP_PLANTED("adopt.os_error_is_damage"));
}

Status LeftAlone(const Status& failed) {
  return Status(failed.id(), "kept memory cannot be taken over: " + failed.what())
      .Why(failed.why())
      .Fix(
          "raise what was too little (`ulimit -v`, `ulimit -n`, memory of the cgroup) and start "
          "memserver again: nothing is lost, and a "
          "keeper that may start it goes on trying");
}

Result<KeptMemory> Adopt(std::vector<HeldMemory> held) {
  KeptMemory memory;
  memory.adopted = true;
  if (held.front().slot != 0)
    return Status(ErrorId::kKeptMemoryBad, "the keeper holds memory, but no index of it");

  TP_ASSIGN_OR_RETURN(memory.index, KeptIndex::Adopt(std::move(held.front().fd), &memory.contents));
  std::vector<UniqueFd> pieces;
  for (size_t i = 1; i < held.size(); ++i) {
    if (held[i].slot >= kStateSlotsFirst) {
      if (!IsNothing(held[i].fd)) memory.states.push_back(std::move(held[i]));
      continue;
    }
    if (held[i].slot != i)
      return Status(ErrorId::kKeptMemoryBad,
                    "piece " + std::to_string(i - 1) + " of the pool is not held");
    pieces.push_back(std::move(held[i].fd));
  }

  TP_ASSIGN_OR_RETURN(memory.pool, HostPool::Adopt(std::move(pieces), memory.contents.geometry));
  if (memory.contents.geometry.own_bytes < WorkerTeam::UndoBytes(1)) {
    return Status(ErrorId::kKeptMemoryBad, "the kept pool has no undo area for a worker");
  }
  if (memory.contents.damaged_slots > 0)
    LogError("jobs in kept memory are given up",
             {{"damaged_slots", memory.contents.damaged_slots}});
  return memory;
}

Result<KeptMemory> MakeNew(const HostPoolOptions& options) {
  KeptMemory memory;
  TP_ASSIGN_OR_RETURN(memory.pool, HostPool::Reserve(options, ReadMemoryBudget()));
  TP_ASSIGN_OR_RETURN(memory.index, KeptIndex::Create(memory.pool->geometry(), RandomNonce()));
  memory.contents.geometry = memory.pool->geometry();
  return memory;
}

// A keeper process that dies meanwhile is replaced, as during operation.
Status HoldAll(std::span<const MemoryToHold> parts, KeptHolder* keeper) {
  for (const MemoryToHold& part : parts) {
    if (part.slot > 0 && TP_PLANTED("keeper.pool_not_told")) continue;
    const Status held = keeper->Hold(part);
    if (!held.ok() && keeper->watch_fd() < 0) return held;
    if (!held.ok()) return keeper->Renew(parts);
    TP_POINT("server.part_held");
  }
  return Status();
}

}  // namespace

Result<std::vector<HeldMemory>> TakeKept(KeptHolder* keeper, Clock* clock) {
  const int64_t end = clock->NowNs() + kTakeTimeoutNs;
  for (;;) {
    auto held = keeper->Take();
    if (held.ok() || clock->NowNs() > end) {
      TP_POINT("server.kept_taken");
      return held;
    }
    clock->SleepNs(kTakePauseNs);
  }
}

void KeeperWatch::Look() {
  if (!keeper_->HasDied()) return;
  std::vector<MemoryToHold> parts;
  if (memory_->index != nullptr) {
    parts = PartsOf(*memory_);
  } else {
    for (const HeldMemory& held : *held_) parts.push_back({held.slot, held.fd.get(), held.bytes});
  }
  if (parts.empty()) return;

  const Status renewed = keeper_->Renew(parts);
  if (!renewed.ok())
    LogError("the keeper died and no new one could be started", {{"why", renewed.Line()}});
}

std::vector<MemoryToHold> PartsOf(const KeptMemory& memory) {
  std::vector<MemoryToHold> parts{{0, memory.index->fd(), kIndexBytes}};
  for (const PoolPiece& piece : memory.pool->pieces())
    parts.push_back({static_cast<uint32_t>(parts.size()), piece.fd, piece.bytes});
  TP_CHECK(parts.size() <= kStateSlotsFirst, "the keeper has slots for 95 pieces of the pool");
  for (const HeldMemory& states : memory.states)
    parts.push_back({states.slot, states.fd.get(), states.bytes});
  return parts;
}

Result<KeptMemory> OpenKeptMemory(const KeptMemoryOptions& options, std::vector<HeldMemory> held,
                                  KeptHolder* keeper) {
  if (!held.empty() && !options.discard_kept) {
    auto adopted = Adopt(std::move(held));
    if (adopted.status().id() == ErrorId::kKeptLayoutUnknown) return adopted.status();
    if (!adopted.ok() && !IsDamage(adopted.status())) return LeftAlone(adopted.status());

    if (!adopted.ok()) {
      LogError("kept memory is given up", {{"why", adopted.status().Line()}});
    } else if (adopted->contents.jobs.empty() && !options.needs_jobs.ok()) {
      return options.needs_jobs;
    } else if (adopted->pool->total_bytes() == HostPool::BytesOf(options.pool)) {
      return adopted;
    } else if (!adopted->contents.jobs.empty()) {
      LogWarn("the pool stays as it is while it holds jobs",
              {{"pool", LogBytes{adopted->pool->total_bytes()}},
               {"asked", LogBytes{options.pool.bytes}}});
      return adopted;
    }

    held.clear();
  }
  TP_RETURN_IF_ERROR(options.needs_jobs);
  // Before new memory is reserved, because the machine may not have room for both.
  TP_RETURN_IF_ERROR(keeper->Forget());
  held.clear();
  TP_ASSIGN_OR_RETURN(KeptMemory memory, MakeNew(options.pool));
  TP_POINT("server.pool_touched");
  TP_RETURN_IF_ERROR(HoldAll(PartsOf(memory), keeper));
  return memory;
}

}  // namespace tidepool::memserver
