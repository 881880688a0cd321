// Passing: small jobs of other users may pass a large one that waits for room, so that it does not
// block everybody. The number of passes is bounded, so that it does not starve.
//
// Pure functions over one waiting rank; the serve loop's thread. A job that already holds its room
// always passes: it is no newcomer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memserver/jobs/admission/waiting_rank.h"
#include "memserver/residency/job_ledger.h"

namespace tidepool::memserver {

// How often one waiting rank may be passed in all, and by jobs of one user.
inline constexpr size_t kPassesMax = 8;
inline constexpr size_t kPassesOfUserMax = 2;
// A job is small if it asks for at most this share of the pool that the other waits for, and of all
// rCaches.
inline constexpr uint64_t kSmallShare = 8;

// `other` lacks room in the pool and asks for `wants`. True if a newcomer of the same priority that
// asks for `demand`, and would fit now, may take it.
bool MayPass(const WaitingRank& other, const Demand& wants, const Demand& demand,
             uint64_t rcache_limit);

}  // namespace tidepool::memserver
