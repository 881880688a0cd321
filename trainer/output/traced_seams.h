// TracedService, TracedCollective: wrappers of the two seams through which a rank's bytes move,
// which record every operation in a StepTrace. RunTrace: all of them for one run.
//
// One thread (the trainer's main thread). They change nothing: every call is forwarded to the real
// object, which must outlive them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/chunk_service.h"
#include "trainer/comm/collective.h"
#include "trainer/output/server_lanes.h"
#include "trainer/output/step_trace.h"

namespace tidepool::trainer {

class TracedService final : public client::ChunkService {
 public:
  TracedService(client::ChunkService* real, StepTrace* trace) : real_(real), trace_(trace) {}

  const client::Attachment& attachment() const override { return real_->attachment(); }
  Result<client::Ticket> StartBeginAt(const client::BeginPoint& point) override {
    return real_->StartBeginAt(point);
  }
  Result<client::Ticket> StartPutWeights(const client::Range& range) override {
    return real_->StartPutWeights(range);
  }
  Result<client::Ticket> StartFetch(const client::Range& range,
                                    const client::Wanted& wanted) override;
  Result<client::Ticket> StartSubmitGradient(const client::Range& range, Version version,
                                             uint32_t micro_batch) override;
  Result<client::Ticket> StartSubmitZeros(const client::Range& range, Version version,
                                          uint32_t micro_batch) override {
    return real_->StartSubmitZeros(range, version, micro_batch);
  }
  Result<client::Ticket> StartSubmitSum(const client::Range& range, Version version) override {
    return real_->StartSubmitSum(range, version);
  }
  Result<client::Ticket> StartEndStep(const client::StepEnd& end) override;
  client::TicketFlags FlagsOf(client::Ticket ticket) const override {
    return real_->FlagsOf(ticket);
  }
  bool Test(client::Ticket ticket) override;
  Result<client::Outcome> Wait(client::Ticket ticket) override;
  Status DeclareSchedule(std::span<const ChunkId> order) override {
    return real_->DeclareSchedule(order);
  }
  Result<UniqueFd> StreamStates(Version version) override { return real_->StreamStates(version); }
  std::optional<Status> StreamEnd() override { return real_->StreamEnd(); }
  Result<UniqueFd> StreamSteps(Version version) override { return real_->StreamSteps(version); }
  std::optional<Status> StepsEnd() override { return real_->StepsEnd(); }
  Status SaveWeights(int dir_fd, const std::string& name, Version version) override {
    return real_->SaveWeights(dir_fd, name, version);
  }
  Status Detach() override { return real_->Detach(); }

 private:
  struct Going {
    StepTrace::Id id = 0;
    bool update = false;  // the first fetch of this chunk at its version
    bool end_step = false;
  };
  Result<client::Ticket> Note(Result<client::Ticket> ticket, TraceLane lane,
                              const client::Range& range, bool update);
  void Ended(std::map<client::Ticket, Going>::iterator going);
  // Ends operations whose copy the server's stream has marked as done, even if nobody asks.
  void LookAtFlags();

  client::ChunkService* const real_;
  StepTrace* const trace_;
  std::map<client::Ticket, Going> going_;
  std::set<ChunkId> seen_;  // at version_
  Version version_ = 0;
};

class TracedCollective final : public Collective {
 public:
  TracedCollective(Collective* real, StepTrace* trace) : real_(real), trace_(trace) {}

  uint32_t rank() const override { return real_->rank(); }
  uint32_t world() const override { return real_->world(); }
  Ticket StartAllGather(const BlockView& block) override;
  Ticket StartReduceScatter(const BlockView& block) override;
  Ticket StartAllToAll(const PartsView& parts) override;
  device::Stream* stream() override { return real_->stream(); }
  bool Test(Ticket ticket) override;
  Status Wait(Ticket ticket) override;
  void GiveUp(const Status& why) override { real_->GiveUp(why); }
  Status CompareOrder() override { return real_->CompareOrder(); }
  Status Barrier() override { return real_->Barrier(); }
  Status SumDoubles(double* values, uint64_t count) override {
    return real_->SumDoubles(values, count);
  }
  Status Broadcast(void* bytes, uint64_t size) override { return real_->Broadcast(bytes, size); }

 private:
  void Ended(Ticket ticket);

  Collective* const real_;
  StepTrace* const trace_;
  std::map<Ticket, StepTrace::Id> going_;
};

// One run's trace with the seams of one attempt.
class RunTrace {
 public:
  // `groups`: null where this rank is not a member.
  RunTrace(const Clock* clock, DeviceTimer timer, client::ChunkService* service,
           const std::vector<Collective*>& groups);

  // The trace, and the wrappers that write to it; they live as long as this object.
  StepTrace* step() { return &trace_; }
  client::ChunkService* service() { return &service_; }
  std::vector<Collective*> groups() const;
  // Has memserver record what it does for the job. Errors: as ServerRecord::Begin.
  Status BeginServer(const std::string& socket_dir, const std::string& job);
  // Takes that into the trace of the last step; call it while the job exists. Does nothing if
  // BeginServer has failed. Errors: as ServerRecord::Take.
  Status TakeServer();
  // Writes the last step, labelled as `rank`'s. Errors: kFileWriteFailed.
  Status Write(const std::string& path, uint32_t rank) const;

 private:
  const Clock* const clock_;
  std::optional<ServerRecord> server_;  // while memserver records
  StepTrace trace_;
  TracedService service_;
  std::vector<std::unique_ptr<TracedCollective>> groups_;
};

}  // namespace tidepool::trainer
