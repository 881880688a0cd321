// Running many seeds of the simulation, one after the other.
//
// One thread.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/sim_world.h"

namespace tidepool::memserver {

inline constexpr uint64_t kSimEvents = 5000;
// Seeds with this remainder by kRepeatEvery run twice, and must give the same hash.
inline constexpr uint64_t kRepeatEvery = 100;

// A broken invariant stops the process; stderr names the seed.
SimReport RunSeeds(uint64_t first, uint64_t last, uint64_t events);
// One line of figures.
std::string Summary(const SimReport& sum, uint64_t seeds, double seconds);

}  // namespace tidepool::memserver
