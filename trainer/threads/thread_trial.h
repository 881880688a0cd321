// FastestThreads: finds by trials with how many compute threads a piece of repeated work is fastest
// on this machine now.
//
// The thread that computes; reads the clock that is handed in. More threads do not always help: in
// a small operator they wait longer for each other than they compute, and beside other programs for
// a CPU.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"

namespace tidepool::trainer {

// What is tried.
struct ThreadTrial {
  uint32_t most = 1;                  // threads, at least 1: the CPUs of this process
  std::function<void(uint32_t)> use;  // sets the number of threads
  std::function<void()> work;         // does the work once
  const Clock* clock = nullptr;       // outlives the call
};

// Work that takes longer once is not tried: `most`. It reads more memory than caches hold, so that
// no number of threads waits much for each other.
inline constexpr int64_t kTriedWorkNs = 100 * kNsPerMs;
// Each number of threads works for at least so long, this many times.
inline constexpr int64_t kTrialNs = 10 * kNsPerMs;
inline constexpr uint32_t kTrialRounds = 5;
// Fewer threads are taken if they are slower by no more than this share: the other CPUs are free
// for others.
inline constexpr double kNoSlower = 1.03;

// Tries `most` threads, half of them, and so on down to one, until fewer are much slower. Leaves
// the fastest number in use, and returns it.
uint32_t FastestThreads(const ThreadTrial& trial);

}  // namespace tidepool::trainer
