// What must hold in the simulated server between turns, and right after each recovery. A broken
// invariant stops the process.
//
// One thread, between turns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/fakes/serve_world.h"
#include "tests/sim/sim_job.h"

namespace tidepool::memserver {

// Bytes that jobs hold and free bytes are the pool, and the ranges of the drives; the ledger says
// the same.
void CheckPoolBytes(ServeWorld* world);
// Frozen chunks have as many holders as jobs list them; who uploads one is here. With their bytes:
// those that are sealed hold what their name says, in the table and in kept memory alike.
void CheckFrozen(const Tables& tables, bool with_bytes);
// No two jobs share a byte, but those of frozen chunks, and none has one of the server's own.
void CheckExtents(ServeWorld* world);
// Every chunk has the sealed version or waits for its update to it, in the table and in kept memory
// alike.
void CheckVersions(const Job& job, const SimJob& model);
// The index in kept memory names exactly the jobs that are open.
void CheckIndex(const ServeWorld& world);
// Tile by tile, every plane holds the bits of an undisturbed run: those of the sealed version where
// the update has passed, those of the version before elsewhere. Weights that are kept, but not yet
// complete, are there. Chunks on NVMe lie there whole, at their version.
void CheckPlanes(ServeWorld* world, const Job& job, const SimJob& model);

// What a dead server has left, read from kept memory alone, but for the jobs with these nonces,
// which were damaged.
struct KeptFact {
  uint64_t nonce = 0;
  Version sealed = 0;
  bool must_survive = false;  // a rank may come back, or the lease is for it
};
std::vector<KeptFact> ReadKept(ServeWorld* world, bool with_lease,
                               std::span<const uint64_t> damaged);
// The recovered server has all of it, at the same sealed version.
void CheckRecovered(const std::vector<KeptFact>& kept, const ServeWorld& world);

}  // namespace tidepool::memserver
