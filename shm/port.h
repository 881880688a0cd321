// ServerPort and ClientPort: the two ends of one session's rings, each with the rights of its process (docs/shm_protocol.md).
//
// Each port belongs to one thread: ServerPort to the serve loop, ClientPort to the trainer's main thread.
// Invariants of ServerPort: it never waits for the client, never reads a word of client memory twice for one decision, and reports any
// number that an honest client cannot write as kViolation; the caller then ends the session.
// Both fill cache lines of their own: two ends in one process (tests, benchmarks) would else slow each other down.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/error_catalog.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "shm/channel_layout.h"
#include "shm/messages.h"
#include "shm/protocol.h"
#include "shm/segment.h"

namespace tidepool::shm {

enum class PopResult { kEmpty, kItem, kViolation };
// Whether another request follows at once; then that one's Push hands both over.
enum class More { kNo, kYes };

class alignas(64) ServerPort {
 public:
  // Makes both segments and the doorbell eventfd. Errors: kMemoryMapFailed, kInternal (no descriptors left).
  // The headers name the session's version of the protocol.
  static Result<std::unique_ptr<ServerPort>> Create(SessionId session, uint32_t protocol = kOwnProtocols.highest);

  // Copies the next request out of the ring. Checks only the ring (not the request's fields).
  PopResult Pop(Request* request);
  // Appends a completion; false when the client holds more than kRingEntries unconsumed ones (a violation).
  bool Push(const Completion& completion);
  // Makes pushed completions visible to a sleeping client: one futex wake, and only when the client says it waits.
  void Wake();
  // Before sleeping: SetSleeping(true), then Pop once more; after waking: SetSleeping(false). The doorbell may ring without a request, and
  // rings once for all requests that come during one sleep.
  void SetSleeping(bool sleeping);
  // Marks the session as ended, for a client that looks only at its ring, and wakes it.
  void End(ErrorId reason);

  int submission_fd() const { return submission_->fd(); }
  int completion_fd() const { return completion_->fd(); }
  int doorbell_fd() const { return doorbell_.get(); }  // eventfd: polled edge-triggered, never read

 private:
  ServerPort() = default;
  void PublishPopped();  // tells the client how far its ring is read
  bool ReadConsumed();   // reads and checks the client's position; false when it is impossible
  std::unique_ptr<Segment> submission_, completion_;
  UniqueFd doorbell_;
  uint64_t submissions_popped_ = 0, completions_pushed_ = 0;
  uint64_t completions_consumed_ = 0;  // last checked value of the client's position
  uint64_t submissions_published_ = 0;
  uint32_t empty_looks_ = 0;           // since the client's position was read
  uint32_t sleep_ = kUnnumberedSleep;  // number of the last sleep
};

class alignas(64) ClientPort {
 public:
  // Maps what the server sent for a session of the version `protocol`. Errors: kHandshakeBad, kAbiMismatch, kMemoryMapFailed.
  static Result<std::unique_ptr<ClientPort>> Map(UniqueFd submission, UniqueFd completion, UniqueFd doorbell,
                                                 uint32_t protocol = kOwnProtocols.highest);

  // False when the ring is full. Rings the doorbell when the server sleeps and was not rung for in this sleep. Where more follows, the
  // server sees nothing before the last Push of the batch, the one that finds the ring full, or each 16th.
  bool Push(const Request& request, More more = More::kNo);
  bool Pop(Completion* completion);
  // Returns when a completion may be there, the session has ended, or `timeout_ns` has passed; spins for `spin_ns` first.
  void WaitForCompletion(int64_t timeout_ns, int64_t spin_ns);
  // The reason when the server has ended the session.
  std::optional<ErrorId> Ended() const;

 private:
  ClientPort() = default;
  bool CompletionThere() const;
  bool HasRoom();
  void PublishBatch();
  void RingForSleep();
  std::unique_ptr<Segment> submission_, completion_;
  UniqueFd doorbell_;
  uint64_t submissions_pushed_ = 0, completions_popped_ = 0;
  uint64_t submissions_published_ = 0;  // the first request that the server cannot see: what follows it is a batch without its end
  Request first_{};                     // of that batch: written last
  uint64_t submissions_consumed_ = 0;   // last read value of the server's position
  uint32_t rung_sleep_ = 0;             // number of the sleep that the doorbell was last rung for
};

}  // namespace tidepool::shm
