// ChooseDemotions: whose states go to NVMe when a newcomer lacks room in the pool (decision 023). A
// pure function; it moves nothing.
//
// Any thread. The rules:
//  1. only jobs without ranks whose states may move now (for the others the caller says why not);
//  2. never one of a higher priority than the newcomer's;
//  3. for another account only what an account has borrowed: it keeps at least its guarantee in the
//     pool;
//  4. within its account's limit on NVMe, and where there is room in the directories;
//  5. lowest priority first, then the one that has been without ranks for longest; none without
//     which the newcomer would fit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "memserver/residency/job_ledger.h"
#include "memserver/residency/placement.h"

namespace tidepool::memserver {

// A job of the ledger that is not the newcomer.
struct Movable {
  JobId job = 0;
  Priority priority = Priority::kNormal;
  int64_t detached_ns = 0;
  const shm::JobSpec* spec = nullptr;
  ChunkId on_host = 0;  // the states of the chunks before it may move
  std::string why_not;  // not empty: they may not, because ...
};

// Who lacks room.
struct Newcomer {
  std::string account;
  Priority priority = Priority::kNormal;
  // Whether the newcomer would be admitted after the states of `moved` have gone, with the ledger
  // as it is then.
  struct Then {
    const Ledger& ledger;
    const std::vector<uint64_t>& nvme_free;  // by directory
    const std::vector<JobId>& moved;
  };
  std::function<bool(const Then& then)> fits;
};

// Whose states are to go.
struct DemotionChoice {
  std::vector<JobId> jobs;  // in order; empty: demotion makes no room
  uint64_t bytes = 0;       // that the pool gets back
  bool fits = false;        // also where nothing has to move
  // Why the choice is empty: "gpt has ranks, bert gives 300 MiB, which is not enough"; at most
  // kNamedMax jobs. Empty when there are no others.
  std::string why_not;
};
inline constexpr size_t kNamedMax = 8;

DemotionChoice ChooseDemotions(Ledger ledger, std::vector<Movable> jobs,
                               std::vector<uint64_t> nvme_free, const Newcomer& newcomer);

}  // namespace tidepool::memserver
