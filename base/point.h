// TP_POINT("room.step"): a named point where a test may kill the process or be notified.
//
// Any thread. Off (the normal case), a point costs one relaxed load. TIDEPOOL_KILL_AT="name" or
// "name:3" in the environment makes the process send itself SIGKILL at the first or third hit;
// TIDEPOOL_STOP_AT likewise SIGSTOP. In-process tests use SetPointHook instead.
// TP_STORE_POINT("room.step", address): the process is killed by its first store to the page of
// `address` from that hit on, wherever the store is: for instance in a loop that a point would
// change. The page becomes read-only, so only the processor sees a difference.
#pragma once

#include <atomic>
#include <functional>

namespace tidepool {

// Reads TIDEPOOL_KILL_AT and TIDEPOOL_STOP_AT; call once at the start of main.
void ArmPointsFromEnvironment();
// `hook` is called with the name of every point that is hit; an empty one removes it. Tests only,
// before other threads start.
void SetPointHook(std::function<void(const char*)> hook);
// For TP_POINT only.
extern std::atomic<bool> points_armed;
void HitPoint(const char* name);
// For TP_STORE_POINT only.
void HitStorePoint(const char* name, const void* address);

}  // namespace tidepool

#define TP_POINT(name)                                                                        \
  do {                                                                                        \
    if (::tidepool::points_armed.load(std::memory_order_relaxed)) ::tidepool::HitPoint(name); \
  } while (false)
#define TP_STORE_POINT(name, address)                             \
  do {                                                            \
    if (::tidepool::points_armed.load(std::memory_order_relaxed)) \
      ::tidepool::HitStorePoint(name, address);                   \
  } while (false)
