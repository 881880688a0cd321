// OpenKeptMemory: the host pool and the kept index of this server: those that the former server
// left with the keeper, or new ones.
//
// The main thread, before the serve loop exists. The keeper holds the memory before this returns,
// so a server that dies at any later instruction leaves everything to the next.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

// The pool, its index, and their contents.
struct KeptMemory {
  std::unique_ptr<HostPool> pool;
  std::unique_ptr<KeptIndex> index;
  IndexContents contents;  // jobs to recover; none in new memory
  bool adopted = false;
  std::vector<HeldMemory> states;  // on GPUs
};

// Options for new memory.
struct KeptMemoryOptions {
  HostPoolOptions pool;       // of new memory; kept memory with jobs stays as it is
  bool discard_kept = false;  // give up what the keeper holds
  // If not ok, no new memory is made, and this is the error; kept memory without jobs is left where
  // it is.
  Status needs_jobs = {};
};

// Takes what the former server left, of which this process is a second holder from then on. Call
// before anything slow. Errors: kKeeperFailed.
Result<std::vector<HeldMemory>> TakeKept(KeptHolder* keeper, Clock* clock);

// Gives damaged kept memory up, with a log line; after any error the keeper continues to hold it
// unchanged. Errors: kKeptLayoutUnknown, kMemoryMapFailed (the system did not map it),
// kKeeperFailed, `needs_jobs`, and those of HostPool::Reserve. `held` is the result of TakeKept.
Result<KeptMemory> OpenKeptMemory(const KeptMemoryOptions& options, std::vector<HeldMemory> held,
                                  KeptHolder* keeper);

// The parts of `memory` that the keeper holds.
std::vector<MemoryToHold> PartsOf(const KeptMemory& memory);

// Watches the keeper while a server starts, whose main thread does not poll: a dead keeper is
// replaced at the next look. The last look is at the end, even of a start that fails.
class KeeperWatch {
 public:
  // Holds `held` until it is adopted, `memory` afterwards.
  KeeperWatch(KeptHolder* keeper, const std::vector<HeldMemory>* held, const KeptMemory* memory)
      : keeper_(keeper), held_(held), memory_(memory) {}
  ~KeeperWatch() { Look(); }
  KeeperWatch(const KeeperWatch&) = delete;
  KeeperWatch& operator=(const KeeperWatch&) = delete;
  void Look();

 private:
  KeptHolder* const keeper_;
  const std::vector<HeldMemory>* const held_;
  const KeptMemory* const memory_;
};

}  // namespace tidepool::memserver
