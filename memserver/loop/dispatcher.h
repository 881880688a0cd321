// Dispatcher: takes requests out of the sessions' rings, checks every number, starts the requests,
// and answers those that have ended.
//
// One thread (the serve loop). A request that an honest client cannot write marks the slot as a
// violator and changes nothing else.
#pragma once

#include "base/clock.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class Dispatcher {
 public:
  // `clock` outlives the dispatcher.
  explicit Dispatcher(const Clock* clock) : clock_(clock) {}

  // Takes a bounded number of new requests of one session. True if there was one.
  bool TakeRequests(SessionSlot* slot, uint32_t requests_max);
  // Starts or answers a held request whose turn has come (copy_order.h). Returns its cost in bytes;
  // 0: it must wait until something changes.
  uint64_t BeginHeld(SessionSlot* slot, const shm::Request& held);
  // Dispatches the parked requests again if something has changed that they may wait for. True if
  // it did.
  bool RetryParked(SessionSlot* slot);
  // Answers the requests whose copies have ended. True if there was one.
  bool EndCopies(SessionSlot* slot);
  // Grows with every request that may leave work to the turn: all but fetches that need not wait.
  uint64_t consequences() const { return consequences_; }

 private:
  void Handle(SessionSlot* slot, const shm::Request& request);
  void StartChecked(SessionSlot* slot, const shm::Request& request);
  // A parked request has begun or was answered. `fetches`: open_traffic.fetches before that.
  void EndWait(SessionSlot* slot, const shm::Request& request, uint64_t fetches);

  const Clock* const clock_;
  uint64_t consequences_ = 0;
};

}  // namespace tidepool::memserver
