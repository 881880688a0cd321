// OpenKeptMemory: the host pool and the kept index of this server: those that the server before it
// left with the keeper, or new ones.
//
// The main thread, before the serve loop exists. What is opened is held by the keeper before this
// returns, so a server that dies at any later instruction leaves everything to the next.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

// The pool, its index, and what is in them.
struct KeptMemory {
  std::unique_ptr<HostPool> pool;
  std::unique_ptr<KeptIndex> index;
  IndexContents contents;  // jobs to recover; none in new memory
  bool adopted = false;
  std::vector<HeldMemory> states;  // on GPUs
};

// What is made where nothing is kept.
struct KeptMemoryOptions {
  HostPoolOptions pool;       // of new memory; kept memory that holds jobs stays as it is
  bool discard_kept = false;  // give up what the keeper holds
  // Not ok: no new memory is made, which then is the error; kept memory without jobs is left where
  // it is.
  Status needs_jobs = {};
};

// What the server before this one left, of which this process is a second holder from then on:
// before anything that takes time. Errors: kKeeperFailed.
Result<std::vector<HeldMemory>> TakeKept(KeptHolder* keeper, Clock* clock);

// Kept memory that is damaged is given up, with a line in the log; after any error the keeper goes
// on holding it as it was. Errors: kKeptLayoutUnknown, kMemoryMapFailed (the system did not map
// it), kKeeperFailed, `needs_jobs`, and those of HostPool::Reserve.
// `held` is what TakeKept gave.
Result<KeptMemory> OpenKeptMemory(const KeptMemoryOptions& options, std::vector<HeldMemory> held,
                                  KeptHolder* keeper);

// What the keeper holds of `memory`.
std::vector<MemoryToHold> PartsOf(const KeptMemory& memory);

// Looks after the keeper while a server starts, whose main thread does not poll: one that died is
// replaced at the next look, the last of which is at the end, also of a start that fails.
class KeeperWatch {
 public:
  // `held` until it was adopted, `memory` afterwards.
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
