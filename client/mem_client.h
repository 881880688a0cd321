// MemClient: the ChunkService of a real memserver: requests through shared-memory rings, the rest
// over the control socket.
//
// One thread. Invariants:
//  1. a request stays in `requests_` until its outcome is taken by Wait; each ticket has exactly
//     one outcome, also when the server ended in between and the request was sent again;
//  2. the first error that ends the session is kept, and every later call returns it;
//  3. no wait is longer than `wait_timeout_ns`, and the end of the server or of a peer rank is
//     noticed within about 20 ms of it;
//  4. a server that ends without a word is waited for (server_timeout_ns > 0): the call in progress
//     parks, comes back to the server that took the job over, sends again what was not answered,
//     and goes on. A server that said why it ended the session is taken at its word;
//  5. in a forked child every call is an error and touches nothing: the session stays its maker's.
#pragma once

#include <cstdint>
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
#include "shm/spec/job_spec.h"

namespace tidepool::client {

class MemClient final : public ChunkService {
 public:
  // Attaches `rank` of the job. Errors: kUsageError (no clock), kNoServer, those of AttachSession,
  // kServerGone (none came within the time-out).
  static Result<std::unique_ptr<MemClient>> Connect(const ClientOptions& options,
                                                    const shm::JobSpec& spec, Rank rank);

  const Attachment& attachment() const override { return session_.attachment; }
  Result<Ticket> StartPutWeights(const Range& range) override;
  Result<Ticket> StartBeginAt(const BeginPoint& point) override;
  Result<Ticket> StartFetch(const Range& range, const Wanted& wanted) override;
  Result<Ticket> StartSubmitGradient(const Range& range, Version version,
                                     uint32_t micro_batch) override;
  Result<Ticket> StartEndStep(const StepEnd& end) override;
  // Is this frozen chunk there? Outcome::bytes are all of its bytes then. 0: this rank is to put
  // them, with StartPutWeights, elements of its dtype in order from the chunk's start, and to
  // claim it again. Waits while another rank puts it. Errors: kContentMismatch (what this rank has
  // put is not what the chunk's name says). A put that is too late is kUploadLost, one into a chunk
  // that is there kChunkFrozen. See ProvideFrozen in provide_frozen.h.
  Result<Ticket> StartClaimFrozen(ChunkId chunk);
  bool Test(Ticket ticket) override;
  Result<Outcome> Wait(Ticket ticket) override;
  TicketFlags FlagsOf(Ticket ticket) const override;
  Status DeclareSchedule(std::span<const ChunkId> order) override;
  Status SaveWeights(int dir_fd, const std::string& name, Version version) override;
  Result<UniqueFd> StreamStates(Version version) override;
  std::optional<Status> StreamEnd() override;
  Status Detach() override;
  // Looks whether the session goes on, as every wait does, for a caller that waits elsewhere; a
  // lost server is waited for here too.
  // Errors: what ended the session.
  Status Check();

 private:
  struct PendingSave {
    int dir_fd = -1;  // the caller's, who waits in SaveWeights
    std::string name;
    Version version = 0;
    std::optional<Status> result;
  };

  // Between two looks at the control socket while waiting.
  static constexpr int64_t kSliceNs = 20 * kNsPerMs;
  // Until the server takes a control frame, or answers one that it answers at once.
  static constexpr int64_t kControlTimeoutNs = 10 * kNsPerSecond;
  // Between two looks at the flags of requests that are to be sent again.
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
  // Looks at the ring's end mark and the control socket without waiting; returns (and keeps) the
  // error that ended the session. kServerGone is returned without being kept where such a server is
  // waited for.
  Status LookAtSession();
  // The same, and waits for a lost server: ok when the session goes on.
  Status CheckSession();
  Status HandleFrame(ReceivedFrame received);
  Status EndSession(Status why);
  // After a frame was sent: a broken connection may have left last words, or may be repaired; then
  // all frames have been sent again.
  Status AfterSend(const Status& sent);

  // --- a server that ended ---
  Status ComeBack();
  Status Rejoin(int64_t timeout_ns, size_t* sent_again);
  Result<size_t> SendAgain();
  // Where the rank brought its rCache (come_back.cpp): a ticket's number is also that of its flags,
  // in the rings of every server.
  void SettleCopied();
  void SendParked();
  Status AwaitParked();
  Status SendSchedule();
  Status SendSave();
  Status RunSave();
  // kServerGone when the server ended before it had confirmed the goodbye; `sent` becomes true when
  // it may have read it.
  Status SayGoodbye(bool* sent);

  const ClientOptions options_;
  Clock* const clock_;
  const std::string socket_dir_;
  const RankName who_;
  std::vector<uint8_t> element_bytes_;  // by chunk, frozen ones too
  const bool sums_gradients_;           // they are handed in as fp32, whatever the chunk's type
  const ForkGuard fork_guard_;
  ControlChannel channel_;
  AttachedSession session_;
  Attempt attempt_;
  const shm::FlagPages flags_;  // null where the server made the rCache
  RequestLog requests_;
  // What was said of the open step besides its end: answered before it, and its outcome is the
  // end's.
  std::vector<Ticket> numbers_;
  Ticket numbered_end_ = 0;  // that end
  ParkedRequests parked_;
  std::vector<ChunkId> schedule_;  // declared last
  std::optional<PendingSave> save_;
  struct PendingStream {
    UniqueFd memory;  // from the server's answer until the caller has it
    std::optional<Status> ended;
  };
  std::optional<PendingStream> stream_;
  int64_t socket_looked_ns_ = 0;  // by Test
  int64_t parked_ns_ = 0;         // waiting for a lost server, in all
  uint64_t comebacks_ = 0;
  Status ended_;
};

}  // namespace tidepool::client
