// SaveLanes: bounds how many saves run at once, by user, so that a file system that does not answer
// holds up only its user's saves.
//
// One thread (the serve loop) owns it. A save takes a lane before it begins and holds it until its
// thread has returned from the user's file system. That may be long after the answer: such a lane
// is stuck. While kOfUser lanes of a user are stuck, that user's saves are refused. kForOthers
// lanes are for users who have none: where many are taken, a user's second save waits.
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
  static constexpr size_t kForOthers = 32;  // of these, reserved for users who have none
  // The longest wait for a lane: half of what the wait and the write may take together.
  static constexpr int64_t kWaitNs = 300 * kNsPerSecond;

  // True when a save of the user may have a lane now.
  bool HasFree(uint32_t uid);
  // Takes a lane, for as long as the returned pointer is held, on any thread. Requires
  // HasFree(uid). `what` describes the save for people.
  std::shared_ptr<const void> Take(uint32_t uid, ConnectionId connection, std::string what);
  // Notes that the save of this connection was answered.
  void End(ConnectionId connection);
  // True when every lane of the user is stuck: nobody can say when one will be free.
  bool AllStuck(uint32_t uid);
  // The user's saves that hold lanes, for messages; empty: saves of others hold them.
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
