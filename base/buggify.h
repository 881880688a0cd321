// TP_BUGGIFY("room.rare_path"): true now and then where a simulator asks for it, so that code takes
// a path that is rare in practice.
//
// Off (the normal case, and always in a daemon) a place costs one relaxed load and is false. A
// simulator arms it with a seed: a quarter of the places, chosen by the seed, then answer true in a
// quarter of their uses. (FoundationDB's "buggify", Zhou et al. 2021, section 4.) Only paths that
// any correct run may take as well stand behind it: less room, smaller bites, one turn later. While
// armed, one thread at a time passes such places: the simulator's.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool {

// The same seed and the same order of uses give the same answers.
void ArmBuggify(uint64_t seed);
void DisarmBuggify();
// How often a place has answered true since it was armed.
uint64_t BuggifyFirings();

// Used by TP_BUGGIFY only.
extern std::atomic<bool> buggify_armed;
bool BuggifyFires(const char* name);

}  // namespace tidepool

#define TP_BUGGIFY(name) \
  (::tidepool::buggify_armed.load(std::memory_order_relaxed) && ::tidepool::BuggifyFires(name))
