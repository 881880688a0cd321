// SaveLanes: how many saves are in work at once, by user, so that a file system that does not
// answer holds up its user's saves alone.
//
// One thread (the serve loop) owns it. A save takes a lane before it begins and holds it until its
// thread has come back from the user's file system. That may be long after the answer: such a lane
// is stuck. While kOfUser lanes of a user are stuck, its saves are refused. kForOthers lanes are
// kept for users who have none: where many lanes are taken, a user's second save waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace tidepool::memserver {

class SaveLanes {
 public:
  static constexpr size_t kOfUser = 4;
  // A lane costs the stacks of three threads and a buffer of 4 MiB at most.
  static constexpr size_t kOfAll = 64;
  static constexpr size_t kForOthers = 32;  // of these, for users who have none
  // The longest wait for a lane: half of what the wait and the write may take together.
  static constexpr int64_t kWaitNs = 300 * kNsPerSecond;

  // True when a save of the user may have a lane now.
  bool HasFree(uint32_t uid);
  // The lane is taken as long as what comes back is held, by any thread. Requires HasFree(uid).
  // `what` is for people.
  std::shared_ptr<const void> Take(uint32_t uid, ConnectionId connection, std::string what);
  // The save of this connection was answered.
  void End(ConnectionId connection);
  // Every lane of the user is stuck: nobody can say when one will be free.
  bool AllStuck(uint32_t uid);
  // The user's saves that hold lanes, for messages; none: those of others do.
  std::string WhatHolds(uint32_t uid);

 private:
  struct Lane {
    std::weak_ptr<const void> holder;
    uint32_t uid = 0;
    ConnectionId connection = 0;
    std::string what;
    bool answered = false;
  };
  // Drops the lanes that are free again.
  void Tidy();
  size_t CountOf(uint32_t uid) const;

  std::vector<Lane> lanes_;
};

}  // namespace tidepool::memserver
