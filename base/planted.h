// TP_PLANTED("room.fault"): a fault that a careful engineer could make, dormant beside the right
// code, to prove that a test would find it.
//
// Any thread. Always false in a normal build, so that the compiler removes the fault. A build with
// TIDEPOOL_PLANTED wakes the one fault that the environment variable TIDEPOOL_PLANT names, in this
// process and in those that it starts; each use reads the variable once. Names are unique.
// scripts/planted finds the faults in the sources, wakes one after the other, and shows which test
// catches it.
#pragma once

#ifdef TIDEPOOL_PLANTED_BUGS

#include <cstdlib>
#include <string_view>

namespace tidepool {

// For TP_PLANTED only.
inline bool IsPlanted(std::string_view name) {
  const char* woken = std::getenv("TIDEPOOL_PLANT");
  return woken != nullptr && name == woken;
}

}  // namespace tidepool

#define TP_PLANTED(name)                                     \
  ([] {                                                      \
    static const bool planted = ::tidepool::IsPlanted(name); \
    return planted;                                          \
  }())
#else
#define TP_PLANTED(name) false
#endif
