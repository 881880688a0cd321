// TP_BUGGIFY("room.rare_path"): true now and then if a simulator has armed it, so that the code
// takes a path that is rare in practice.
//
// Off (the normal case, and always in a daemon), a use costs one relaxed load and is false. A
// simulator arms it with a seed: a quarter of the uses in the source, chosen by the seed, then
// return true in a quarter of their executions. (FoundationDB's "buggify", Zhou et al. 2021,
// section 4.) It may only guard paths that any correct run may take: less room, smaller
// pieces, one turn later. While armed, one thread at a time (the simulator's) executes such uses.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool {

// The same seed and the same order of uses give the same answers.
void ArmBuggify(uint64_t seed);
void DisarmBuggify();
// How often it has returned true since it was armed.
uint64_t BuggifyFirings();

// For TP_BUGGIFY only.
extern std::atomic<bool> buggify_armed;
bool BuggifyFires(const char* name);

}  // namespace tidepool

#define TP_BUGGIFY(name) \
  (::tidepool::buggify_armed.load(std::memory_order_relaxed) && ::tidepool::BuggifyFires(name))
