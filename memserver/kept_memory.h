// OpenKeptMemory: the host pool and the kept index of this server: those that the server before it left with the keeper, or new ones.
//
// The main thread, before the serve loop exists. What is opened is held by the keeper before this returns, so a server that dies at any
// later instruction leaves everything to the next.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/residency/host_pool.h"
#include "memserver/residency/kept_index.h"

namespace tidepool::memserver {

struct KeptMemory {
  std::unique_ptr<HostPool> pool;
  std::unique_ptr<KeptIndex> index;
  IndexContents contents;  // jobs to recover; none in new memory
  bool adopted = false;
  std::vector<HeldMemory> states;  // on GPUs
};

struct KeptMemoryOptions {
  HostPoolOptions pool;       // of new memory; kept memory that holds jobs stays as it is
  bool discard_kept = false;  // give up what the keeper holds
};

// Kept memory that is damaged is given up, with a line in the log; after any error the keeper goes on holding it as it was. Errors:
// kKeptLayoutUnknown, kMemoryMapFailed (the system did not map it), kKeeperFailed, and those of HostPool::Reserve.
Result<KeptMemory> OpenKeptMemory(const KeptMemoryOptions& options, KeptHolder* keeper);

// What the keeper holds of `memory`.
std::vector<MemoryToHold> PartsOf(const KeptMemory& memory);

}  // namespace tidepool::memserver
