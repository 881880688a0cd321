// Session: the data-plane end of one attached rank: its rings, its rCache, its copies and its
// parked requests.
//
// One thread (the serve loop). The lane is destroyed before the memory it copies to and from (order
// of the members). If the rank brought its rCache (brought.gpu), a copy begins only when its
// `ready` flag is set, the GPU's stream has room, and its turn in the order of copies has come
// (memserver/loop/copy_order.h): until then the request is *held*, and tried in every turn.
// Invariant: requests taken minus answers given is at most kOutstandingMax, so an answer always has
// a slot in the ring, unless the client does not take its completions, which ends the session.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "device/device.h"
#include "memserver/traffic/copy_lane.h"
#include "memserver/traffic/rcache_map.h"
#include "memserver/traffic/wait_list.h"
#include "memserver/traffic/wait_times.h"
#include "shm/port.h"

namespace tidepool::memserver {

// Most requests of a session that are taken but not answered. The client stays below the ring size;
// more ends the session.
inline constexpr uint32_t kOutstandingMax = shm::kRingEntries;

class Session {
 public:
  struct Parts {
    SessionId id = 0;
    Rank rank = 0;
    std::unique_ptr<shm::ServerPort> port = nullptr;
    std::unique_ptr<device::Memory> rcache = nullptr;
    // Its own stream; null if the rCache was brought.
    std::unique_ptr<device::Stream> stream = nullptr;
    ImportedRcache brought = {};
    GpuStreams* gpu = nullptr;  // of brought.gpu
  };
  explicit Session(Parts parts);

  // The session's identity and parts.
  SessionId id() const { return id_; }
  Rank rank() const { return rank_; }
  shm::ServerPort& port() { return *port_; }
  std::byte* rcache() const { return rcache_->data(); }
  uint64_t rcache_bytes() const { return rcache_->bytes(); }
  CopyLane& lane() { return lane_; }
  const CopyLane& lane() const { return lane_; }
  WaitList& waiting() { return waiting_; }
  RcacheMap& rcache_map() { return rcache_map_; }
  // True if the rank brought its rCache, as GPU memory.
  bool is_brought() const { return brought_.gpu != nullptr; }

  // True if the request's copy begins in the order of its GPU's root complex; other copies begin
  // when they come, or when something changes.
  bool IsOrdered(const shm::Request& request) const {
    return is_brought() && request.op != static_cast<uint32_t>(shm::Op::kClaimFrozen);
  }
  // Parks a request, whose copy has this many bytes, until its turn comes.
  void Hold(const shm::Request& request, uint64_t bytes);
  // The request's turn had come, but it waits for a version or for a staging buffer; it is tried
  // again when one of these may be available.
  void LetWait(const shm::Request& request);
  void HoldAgain(const shm::Request& request) { held_.set(Slot(request)); }
  bool HasWaited(const shm::Request& request) const { return has_waited_.test(Slot(request)); }
  // Removes a request that was answered, or whose copy has begun.
  void Unpark(const shm::Request& request);
  // Among the held requests that may begin now, the one that is awaited first; null: none. Valid
  // until one is parked or unparked.
  const shm::Request* NextToBegin(LaneWay way) const;
  // True if no event reports that a held request or a copy on a GPU can go on.
  bool MustBePolled() const { return is_brought() && (held_.any() || lane_.size() > 0); }
  // True while copies of it are in progress that cannot be stopped: its memory, and that of its
  // job, must wait for them.
  bool MustDrain() { return is_brought() && !lane_.gpu()->failed() && !lane_.AllPassed(); }
  // Writes the `done` word by the CPU: for a gradient once it is in kept memory, and for a request
  // that is answered with an error.
  void WriteDone(uint64_t counter) {
    if (is_brought())
      flags_.done(flags_base_ + counter)->store(flags_base_ + counter, std::memory_order_release);
  }
  // Lets the trainer's streams that wait for copies continue and find that the session is over.
  void PoisonFlags() {
    if (is_brought()) flags_.PoisonDone();
  }

  // What remains of an ended session.
  struct Remains {
    std::unique_ptr<shm::ServerPort> port;
    std::unique_ptr<device::Memory> rcache;
    ImportedRcache brought;
  };
  // Drops the copies in flight, then returns the memory to the caller: unmapping it takes longer
  // than a turn may. Not while it MustDrain.
  static Remains Dissolve(std::unique_ptr<Session> session);

  // Takes the next request. Besides the ring itself it checks the counter and the number of
  // unanswered requests; `why` names a violation.
  shm::PopResult Take(shm::Request* request, const char** why);
  // Puts an answer into the completion ring; false if the client has not taken its completions (a
  // violation).
  bool Answer(const shm::Completion& completion);
  // Wakes the client once for all answers since the last call.
  void WakeIfAnswered();

  uint64_t bytes_h2d = 0, bytes_d2h = 0, requests_parked = 0;
  WaitTimes waits;  // of the parked requests
  uint64_t requests() const { return taken_; }
  bool put_staged = false;    // weights are being copied into the staging buffer, to be split
  uint64_t seen_changes = 0;  // Job::Changes at the last dispatch of parked requests

 private:
  static size_t Slot(const shm::Request& request) { return request.counter % kOutstandingMax; }
  bool MayBegin(const shm::Request& request) const;

  const SessionId id_;
  const Rank rank_;
  std::unique_ptr<shm::ServerPort> port_;
  std::unique_ptr<device::Memory> rcache_;
  ImportedRcache brought_;
  const shm::FlagPages flags_;
  const uint64_t flags_base_;
  CopyLane lane_;
  WaitList waiting_;
  RcacheMap rcache_map_;
  uint64_t taken_ = 0;  // also the counter of the last request
  uint64_t answered_ = 0;
  bool wake_due_ = false;
  std::bitset<kOutstandingMax> held_, has_waited_;  // by Slot
};

// The answer to a request that was executed; `bytes` were copied for it.
shm::Completion Success(const shm::Request& request, uint64_t bytes);
// An answer to `request` with an error code.
shm::Completion Failure(const shm::Request& request, ErrorId error);

}  // namespace tidepool::memserver
