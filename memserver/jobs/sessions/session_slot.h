// SessionSlot: the session slot of one rank: the serve loop's state of a rank from the moment it is
// granted its place in a job until it has left.
//
// One thread (the serve loop). A plain struct, owned by Tables; the job's list of ranks points to
// it. A slot goes through three states: granted (the rank prepares its memory), held (it asked to
// be attached, and its job is not ready yet: held_port is set) and attached (session is set).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/ids.h"
#include "base/status.h"
#include "device/device.h"
#include "memserver/traffic/session.h"
#include "shm/port.h"

namespace tidepool::memserver {

struct Job;

// How a slot is left.
enum class Leaving {
  kGoodbye,   // the rank said so
  kLost,      // its connection ended
  kExpelled,  // the server ends it and tells the control thread
};

struct SessionSlot {
  ConnectionId connection = 0;
  SessionId session_id = 0;
  Job* job = nullptr;
  Rank rank = 0;
  int32_t pid = 0;
  uint64_t nonce = 0;  // of this incarnation of the rank
  uint64_t process_start = 0;
  uint64_t rcache_bytes = 0;  // granted
  bool client_owned_rcache = false;
  // The port of an attach that waits until the job's memory is zeroed.
  std::unique_ptr<shm::ServerPort> held_port;
  std::unique_ptr<device::Memory> held_rcache;
  ImportedRcache held_brought;
  std::unique_ptr<Session> session;  // null until attached
  bool watched = false;              // its descriptors are in the loop's epoll set
  const char* violation = nullptr;   // if set, the session ends within this turn
  // If set, the slot is left as soon as its copies on a GPU have ended; nothing more begins for it.
  struct Departure {
    Leaving how = Leaving::kLost;
    Status why;
  };
  std::optional<Departure> leaving;
};

// Puts an answer into the slot's ring; notes a violation where the ring is full.
void Answer(SessionSlot* slot, const shm::Completion& completion);

}  // namespace tidepool::memserver
