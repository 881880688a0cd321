// MemClient: the ChunkService of a real memserver: requests through shared-memory rings, the rest over the control socket.
//
// One thread. Invariants:
//  1. a ticket is a request's counter; it stays in `tickets_` from the request until its outcome is taken by Wait;
//  2. the first error that ends the session is kept, and every later call returns it;
//  3. no wait is longer than `wait_timeout_ns`, and the end of the server or of a peer rank is noticed within about 20 ms of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "client/attach.h"
#include "client/chunk_service.h"
#include "client/control_channel.h"
#include "shm/job_spec.h"

namespace tidepool::client {

struct ClientOptions {
  std::string socket_dir;                                 // empty: shm::DefaultSocketDir()
  int64_t connect_timeout_ns = int64_t{2} * 1000000000;   // until a server answers at the socket
  int64_t attach_timeout_ns = int64_t{600} * 1000000000;  // until it has prepared the job's memory
  int64_t wait_timeout_ns = int64_t{120} * 1000000000;    // of one Wait
  int64_t save_timeout_ns = int64_t{600} * 1000000000;    // of SaveWeights
  int64_t spin_ns = 20'000;                               // looking at the ring before sleeping; 0: sleep at once
};

class MemClient final : public ChunkService {
 public:
  // Attaches `rank` of the job. Errors: kNoServer, and those of AttachSession.
  static Result<std::unique_ptr<MemClient>> Connect(const ClientOptions& options, const shm::JobSpec& spec, Rank rank);

  const Attachment& attachment() const override { return session_.attachment; }
  Result<Ticket> StartPutWeights(const Range& range) override;
  Result<Ticket> StartFetch(const Range& range, Version version) override;
  Result<Ticket> StartSubmitGradient(const Range& range, Version version, uint32_t micro_batch) override;
  Result<Ticket> StartEndStep(const StepEnd& end) override;
  bool Test(Ticket ticket) override;
  Result<Outcome> Wait(Ticket ticket) override;
  Status DeclareSchedule(std::span<const ChunkId> order) override;
  Status SaveWeights(int dir_fd, const std::string& name, Version version) override;
  Status Detach() override;

 private:
  struct PendingRequest {  // what an error text needs to say of a request, and its outcome
    shm::Op op = shm::Op::kFetch;
    ChunkId chunk = 0;
    Version version = 0;
    std::optional<Result<Outcome>> outcome;
  };

  MemClient(const ClientOptions& options, ControlChannel channel, AttachedSession session);
  Result<Ticket> Start(shm::Request request);
  Status PushWhenRoom(const shm::Request& request);
  void TakeCompletions();
  Result<Outcome> OutcomeOf(const shm::Completion& completion, const PendingRequest& pending) const;
  // Looks at the ring's end mark and the control socket without waiting; returns (and keeps) the error that ended the session.
  Status CheckSession();
  Status HandleFrame(const shm::Frame& frame);
  Status EndSession(Status why);

  ClientOptions options_;
  ControlChannel channel_;
  AttachedSession session_;
  std::unordered_map<Ticket, PendingRequest> tickets_;
  uint64_t last_counter_ = 0;
  int64_t socket_looked_ns_ = 0;  // by Test
  std::optional<Status> save_result_;
  Status ended_;
};

}  // namespace tidepool::client
