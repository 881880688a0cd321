// ChooseDemotions: whose states go to NVMe when a newcomer lacks room in the pool (decision 023). A
// pure function; it moves nothing.
//
// Any thread. The rules:
//  1. only jobs without ranks whose states may move now (for the others the caller says why not);
//  2. never a job of a higher priority than the newcomer's;
//  3. from another account, only what it has borrowed: it keeps at least its guarantee in the pool;
//  4. within its account's limit on NVMe, and if the directories have room;
//  5. lowest priority first, then the job that has been without ranks for longest; no job without
//     which the newcomer would fit as well.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "memserver/residency/job_ledger.h"
#include "memserver/residency/placement.h"

namespace tidepool::memserver {

// A job of the ledger other than the newcomer.
struct Movable {
  JobId job = 0;
  Priority priority = Priority::kNormal;
  int64_t detached_ns = 0;
  const shm::JobSpec* spec = nullptr;
  ChunkId on_host = 0;  // the states of the chunks before it may move
  std::string why_not;  // if not empty, why the states may not move
};

// The job that lacks room.
struct Newcomer {
  std::string account;
  Priority priority = Priority::kNormal;
  // True if the newcomer would be admitted after the states of `moved` have gone, with the ledger
  // as it is then.
  struct Then {
    const Ledger& ledger;
    const std::vector<uint64_t>& nvme_free;  // by directory
    const std::vector<JobId>& moved;
  };
  std::function<bool(const Then& then)> fits;
};

// The jobs whose states are to move.
struct DemotionChoice {
  std::vector<JobId> jobs;  // in order; empty: demotion makes no room
  uint64_t bytes = 0;       // returned to the pool
  bool fits = false;        // also true if nothing has to move
  // Why the choice is empty: "gpt has ranks, bert gives 300 MiB, which is not enough"; names at
  // most kNamedMax jobs. Empty if there are no others.
  std::string why_not;
};
inline constexpr size_t kNamedMax = 8;

DemotionChoice ChooseDemotions(Ledger ledger, std::vector<Movable> jobs,
                               std::vector<uint64_t> nvme_free, const Newcomer& newcomer);

}  // namespace tidepool::memserver
