// ServerPort and ClientPort: the two ends of one session's rings, each with the access rights of
// its process (docs/shm_protocol.md).
//
// Each port belongs to one thread: ServerPort to the serve loop, ClientPort to the trainer's main
// thread. Invariants of ServerPort: it never waits for the client, never reads a word of client
// memory twice for one decision, and reports any number that an honest client cannot write as
// kViolation; the caller then ends the session.
// Both fill cache lines of their own, because two ends in one process (tests, benchmarks) would
// otherwise slow each other down by false sharing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "shm/channel_layout.h"
#include "shm/messages.h"
#include "shm/protocol.h"
#include "shm/ring_lines.h"
#include "shm/segment.h"
#include "shm/shared_load.h"

namespace tidepool::shm {

// The result of reading a ring; kViolation: a number that an honest client cannot write.
enum class PopResult { kEmpty, kItem, kViolation };
// True if another request follows at once; its Push then publishes both.
enum class More { kNo, kYes };

// The server's end: takes requests, sends completions.
class alignas(64) ServerPort {
 public:
  // Makes both segments and the doorbell eventfd. The headers name the session's protocol version.
  // Errors: kMemoryMapFailed, kInternal (no descriptors left).
  static Result<std::unique_ptr<ServerPort>> Create(SessionId session,
                                                    uint32_t protocol = kOwnProtocols.highest);

  // Copies the next request out of the ring. Checks only the ring (not the request's fields).
  PopResult Pop(Request* request);
  // Appends a completion; false if the client holds more than kRingEntries unconsumed ones (a
  // violation).
  bool Push(const Completion& completion);
  // Makes pushed completions visible to a sleeping client: one futex wake, and only if the client
  // says that it waits.
  void Wake();
  // Before sleeping: SetSleeping(true), then Pop once more; after waking: SetSleeping(false). The
  // doorbell may ring without a request, and rings once for all requests that arrive during one
  // sleep.
  void SetSleeping(bool sleeping);
  // Marks the session as ended, for a client that reads only its ring, and wakes it.
  void End(ErrorId reason);

  uint32_t protocol() const { return protocol_; }
  // Descriptors to send with Welcome; they stay the port's.
  int submission_fd() const { return submission_->fd(); }
  int completion_fd() const { return completion_->fd(); }
  int doorbell_fd() const { return doorbell_.get(); }  // eventfd: polled edge-triggered, never read

 private:
  ServerPort() = default;
  // Decides about a next slot with this sequence: nothing, or a violation.
  PopResult PopNothing(uint64_t sequence);
  // Room in the completion ring, which was full when the client's position was last read.
  bool FindRoom();
  void PublishPopped();  // tells the client how far its ring is read
  // Reads and checks the client's position; false if it is impossible.
  bool ReadConsumed();
  std::unique_ptr<Segment> submission_, completion_;
  UniqueFd doorbell_;
  uint64_t submissions_popped_ = 0, completions_pushed_ = 0;
  uint64_t completions_consumed_ = 0;  // last checked value of the client's position
  uint64_t submissions_published_ = 0;
  uint32_t empty_looks_ = 0;           // since the client's position was read
  uint32_t sleep_ = kUnnumberedSleep;  // number of the last sleep
  uint32_t protocol_ = 0;
};

// The client's end: sends requests, takes completions.
class alignas(64) ClientPort {
 public:
  // Maps the descriptors that the server sent for a session of the version `protocol`. Errors:
  // kHandshakeBad, kAbiMismatch, kMemoryMapFailed.
  static Result<std::unique_ptr<ClientPort>> Map(UniqueFd submission, UniqueFd completion,
                                                 UniqueFd doorbell,
                                                 uint32_t protocol = kOwnProtocols.highest);

  uint32_t protocol() const { return protocol_; }
  // False if the ring is full. Rings the doorbell if the server sleeps and has not been rung for in
  // this sleep. With More::kYes the server sees nothing before the last Push of the batch, the one
  // that finds the ring full, or each 16th.
  bool Push(const Request& request, More more = More::kNo);
  // Copies the next completion out of the ring; false if there is none.
  bool Pop(Completion* completion);
  // Returns when a completion may be available, the session has ended, or `timeout_ns` has passed
  // by `clock`; spins for `spin_ns` first (0 with a clock that stands still between sleeps).
  void WaitForCompletion(Clock* clock, int64_t timeout_ns, int64_t spin_ns);
  // The reason if the server has ended the session.
  std::optional<ErrorId> Ended() const;

 private:
  ClientPort() = default;
  bool CompletionThere() const;
  bool LookForCompletion() const;      // several polls; true also if the session has ended
  bool FindRoom();                     // in the submission ring, as above
  void Publish(const Request& first);  // publishes the batch that begins with `first`
  void RingForSleep(uint32_t sleep);
  std::unique_ptr<Segment> submission_, completion_;
  UniqueFd doorbell_;
  uint64_t submissions_pushed_ = 0, completions_popped_ = 0;
  // The first request that the server cannot see; the requests from it on are an unfinished batch.
  uint64_t submissions_published_ = 0;
  Request first_{};                    // first request of that batch, written last
  uint64_t submissions_consumed_ = 0;  // last read value of the server's position
  uint32_t rung_sleep_ = 0;            // number of the last sleep that the doorbell was rung for
  uint32_t protocol_ = 0;
};

// The per-message functions are inline: a call with the item in memory on both sides takes about as
// long as the ring does (bench_ring).

inline PopResult ServerPort::Pop(Request* request) {
  const RingSlot* slot = SlotAt(*submission_, submissions_popped_);
  const uint64_t sequence = SharedLoad(slot->sequence, std::memory_order_seq_cst);
  if (sequence != submissions_popped_ + 1) return PopNothing(sequence);
  LoadPayload(*slot, request);
  ++submissions_popped_;
  if (submissions_popped_ - submissions_published_ >= kPublishEvery) PublishPopped();
  return PopResult::kItem;
}

inline bool ServerPort::Push(const Completion& completion) {
  if (completions_pushed_ - completions_consumed_ >= kRingEntries && !FindRoom()) return false;
  RingSlot* slot = SlotAt(*completion_, completions_pushed_);
  StorePayload(slot, completion);
  // Release is enough: Wake orders it before its check of the client.
  slot->sequence.store(++completions_pushed_, std::memory_order_release);
  return true;
}

inline void ClientPort::Publish(const Request& first) {
  RingSlot* slot = SlotAt(*submission_, submissions_published_);
  StorePayload(slot, first);
  // Sequentially consistent, not only release: this side next checks whether the server sleeps, and
  // the server reads this word after it announced its sleep. One of the two must see the other.
  slot->sequence.store(submissions_published_ + 1, std::memory_order_seq_cst);
  submissions_published_ = submissions_pushed_;
  const auto* server = reinterpret_cast<const CompletionHeader*>(completion_->data());
  if (const uint32_t sleep = server->server_sleeping.load(std::memory_order_seq_cst); sleep != 0)
    RingForSleep(sleep);
}

inline bool ClientPort::Push(const Request& request, More more) {
  if (submissions_pushed_ - submissions_consumed_ >= kRingEntries && !FindRoom()) return false;
  PrefetchForWrite(SlotAt(*submission_, submissions_pushed_ + kSlotsAhead));
  const uint64_t position = submissions_pushed_++;
  const bool ends = more == More::kNo || submissions_pushed_ - submissions_published_ == kBatchMax;
  // The server polls one slot only, the next that it will read, which is the first of the batch.
  // That slot is written last, so that the server fetches none of these lines too early.
  if (position == submissions_published_) {
    if (ends)
      Publish(request);
    else
      first_ = request;
    return true;
  }

  RingSlot* slot = SlotAt(*submission_, position);
  StorePayload(slot, request);
  slot->sequence.store(position + 1, std::memory_order_release);
  if (ends) Publish(first_);
  return true;
}

inline bool ClientPort::CompletionThere() const {
  return SlotAt(*completion_, completions_popped_)->sequence.load(std::memory_order_acquire) ==
         completions_popped_ + 1;
}

inline bool ClientPort::Pop(Completion* completion) {
  if (!CompletionThere()) return false;
  LoadPayload(*SlotAt(*completion_, completions_popped_), completion);
  ++completions_popped_;
  reinterpret_cast<SubmissionHeader*>(submission_->data())
      ->completions_consumed.store(completions_popped_, std::memory_order_release);
  return true;
}

}  // namespace tidepool::shm
