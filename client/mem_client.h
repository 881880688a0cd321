// MemClient: the ChunkService of a real memserver: requests go through shared-memory rings,
// everything else over the control socket.
//
// One thread. Invariants:
//  1. a request stays in `requests_` until Wait has taken its outcome; each ticket has exactly one
//     outcome, even if the server ended in between and the request was sent again;
//  2. the first error that ends the session is kept, and every later call returns it;
//  3. no wait is longer than `wait_timeout_ns`, and the end of the server or of a peer rank is
//     noticed within about 20 ms;
//  4. after the unannounced end of a server (server_timeout_ns > 0) the call in progress parks,
//     resumes at the server that took the job over, sends unanswered requests again, and
//     continues. If a server gave a reason for ending the session, the session is over;
//  5. in a forked child every call fails and touches nothing: the session stays its maker's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/units.h"
#include "client/attach.h"
#include "client/attempt.h"
#include "client/chunk_service.h"
#include "client/client_options.h"
#include "client/control_channel.h"
#include "client/fork_guard.h"
#include "client/parked_requests.h"
#include "client/reconnect.h"
#include "client/request_log.h"
#include "shm/flag_pages.h"
#include "shm/messages.h"
#include "shm/spec/job_spec.h"

namespace tidepool::client {

class MemClient final : public ChunkService {
 public:
  // Attaches `rank` of the job. Errors: kUsageError (no clock), kNoServer, those of AttachSession,
  // kServerGone (no server came within the time-out).
  static Result<std::unique_ptr<MemClient>> Connect(const ClientOptions& options,
                                                    const shm::JobSpec& spec, Rank rank);

  const Attachment& attachment() const override { return session_.attachment; }
  Result<Ticket> StartPutWeights(const Range& range) override;
  Result<Ticket> StartBeginAt(const BeginPoint& point) override;
  Result<Ticket> StartFetch(const Range& range, const Wanted& wanted) override;
  Result<Ticket> StartSubmitGradient(const Range& range, Version version,
                                     uint32_t micro_batch) override;
  Result<Ticket> StartSubmitZeros(const Range& range, Version version,
                                  uint32_t micro_batch) override;
  Result<Ticket> StartSubmitSum(const Range& range, Version version) override {
    return StartSubmitGradient(range, version, shm::kSummed);
  }
  Result<Ticket> StartEndStep(const StepEnd& end) override;
  // Asks whether this frozen chunk is there. If so, Outcome::bytes is its size. 0: this rank must
  // put its bytes with StartPutWeights, elements of its dtype in order from the chunk's start, and
  // claim it again. Waits while another rank puts it. Errors: kContentMismatch (the bytes put do
  // not match the chunk's name). A put that comes too late is kUploadLost, one into a present chunk
  // kChunkFrozen. See ProvideFrozen in provide_frozen.h.
  Result<Ticket> StartClaimFrozen(ChunkId chunk);
  bool Test(Ticket ticket) override;
  Result<Outcome> Wait(Ticket ticket) override;
  TicketFlags FlagsOf(Ticket ticket) const override;
  Status DeclareSchedule(std::span<const ChunkId> order) override;
  Status SaveWeights(int dir_fd, const std::string& name, Version version) override;
  Result<UniqueFd> StreamStates(Version version) override;
  std::optional<Status> StreamEnd() override { return EndOf(&stream_); }
  Result<UniqueFd> StreamSteps(Version version) override;
  std::optional<Status> StepsEnd() override { return EndOf(&steps_); }
  Status Detach() override;
  // Checks that the session goes on, as every wait does, for a caller that waits elsewhere; waits
  // for a lost server. Errors: what ended the session.
  Status Check();

 private:
  struct PendingSave {
    int dir_fd = -1;  // owned by the caller, which waits in SaveWeights
    std::string name;
    Version version = 0;
    std::optional<Status> result;

    Status SendTo(ControlChannel* channel) const;
  };

  // Interval of checking the control socket while waiting.
  static constexpr int64_t kSliceNs = 20 * kNsPerMs;
  // Limit for the server to accept a control frame, and to answer one that needs no work.
  static constexpr int64_t kControlTimeoutNs = 10 * kNsPerSecond;
  // Interval of checking the flags of requests that are to be sent again.
  static constexpr int64_t kParkedLookNs = kNsPerMs;
  int64_t slice_ns() const { return parked_.any() ? kParkedLookNs : kSliceNs; }

  MemClient(const ClientOptions& options, std::string socket_dir, const RankName& who, Link link,
            const shm::JobSpec& spec);
  // ok while the session can be used: not ended, and not inherited by fork.
  Status Usable() const;
  Result<Ticket> Start(shm::Request request);
  Status StartNumbers(const StepEnd& end);
  bool Push(shm::Request request, shm::More more);
  Status PushWhenRoom(const shm::Request& request);
  void TakeCompletions();
  // Checks the ring's end mark and the control socket without waiting; returns (and keeps) the
  // error that ended the session. kServerGone is returned but not kept if such a server is waited
  // for.
  Status LookAtSession();
  // The same, and waits for a lost server: ok when the session continues.
  Status CheckSession();
  Status HandleFrame(ReceivedFrame received);
  Status EndSession(Status why);
  // After sending a frame: a broken connection may have left a last message, or may be restored; in
  // that case all frames have been sent again.
  Status AfterSend(const Status& sent);

  // --- a server that ended ---
  Status ComeBack();
  Status Rejoin(int64_t timeout_ns, size_t* sent_again);
  Result<size_t> SendAgain();
  // If the rank brought its rCache (come_back.cpp): a ticket's number is also that of its flags, in
  // the rings of every server.
  void SettleCopied();
  void SendParked();
  Status AwaitParked();
  Status SendSchedule();
  // Takes the server's answers until `reached`, through changes of servers. Returns `late` after
  // that time, the time without a server not counted.
  Status WaitUntil(const std::function<bool()>& reached, int64_t limit_ns, const Status& late);
  // kServerGone if the server ended before it confirmed the goodbye; `sent` becomes true if it may
  // have read it.
  Status SayGoodbye(bool* sent);

  const ClientOptions options_;
  Clock* const clock_;
  const std::string socket_dir_;
  const RankName who_;
  std::vector<uint8_t> element_bytes_;  // by chunk, including frozen ones
  const bool sums_gradients_;  // gradients are submitted as fp32 for any dtype of the chunk
  const ForkGuard fork_guard_;
  ControlChannel channel_;
  AttachedSession session_;
  Attempt attempt_;
  const shm::FlagPages flags_;  // null if the server made the rCache
  RequestLog requests_;
  // Statements about the open step before its end: answered earlier, with the outcome of the end.
  std::vector<Ticket> numbers_;
  Ticket numbered_end_ = 0;  // that end
  ParkedRequests parked_;
  std::vector<ChunkId> schedule_;  // declared last
  std::optional<PendingSave> save_;
  struct PendingStream {
    UniqueFd memory;  // from the server's answer until the caller has it
    std::optional<Status> ended;
  };
  Result<UniqueFd> AwaitMemory(std::optional<PendingStream>* stream);
  std::optional<Status> EndOf(std::optional<PendingStream>* stream);
  std::optional<PendingStream> stream_, steps_;  // of states, of steps
  int64_t socket_looked_ns_ = 0;                 // last check by Test
  int64_t parked_ns_ = 0;                        // total time spent waiting for lost servers
  uint64_t comebacks_ = 0;
  Status ended_;
};

}  // namespace tidepool::client
