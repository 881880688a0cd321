#include "memserver/jobs/saves/step_streams.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/point.h"

namespace tidepool::memserver {
namespace {

// Connections' own numbers are those of their gates for states.
uint64_t GateOf(ConnectionId connection) {
  return connection | uint64_t{1} << 63;
}

}  // namespace

Status StepStreams::Check(const SessionSlot* slot, const StreamSteps& event) const {
  if (slot == nullptr) return Status(ErrorId::kSaveFailed, "the session has ended");
  const Job& job = *slot->job;
  if (!job.IsRecorded() || !job.states->weights_ready())
    return Status(ErrorId::kSaveFailed, "the job has no weights yet");
  if (event.version != job.states->sealed_version())
    return Status(ErrorId::kSaveFailed, "version " + std::to_string(event.version) +
                                            " is not the last sealed one, " +
                                            std::to_string(job.states->sealed_version()));

  size_t all = 0, own = 0;
  for (const auto& other : context_.tables->jobs) {
    all += other->running_steps.size();
    own += other->uid == job.uid ? other->running_steps.size() : 0;
  }
  if (own >= kOfUser || all >= kOfAll)
    return Status(ErrorId::kSaveFailed, "too many logs of steps at once");
  return {};
}

void StepStreams::Request(StreamSteps event) {
  SessionSlot* const slot = context_.tables->FindSlot(event.connection);
  if (const Status status = Check(slot, event); !status.ok())
    return context_.Send(StepsDone{event.connection, status});

  Job* const job = slot->job;
  StepTask task{.memory = std::move(event.memory),
                .states = job->states.get(),
                .version = event.version,
                .feed = std::make_shared<StepFeed>(job->spec().chunks.size()),
                .opened = nullptr};
  job->running_steps.push_back({event.connection, task.feed, task.asker_gone});
  job->updates.SetGate(GateOf(event.connection),
                       [feed = task.feed](ChunkId id) { return feed->IsOpen(id); });

  SaveRequest request;
  request.connection = event.connection;
  request.name = "a log of steps";
  request.steps = std::move(task);
  TP_POINT("server.steps_begun");
  context_.neighbours.saves->Push(std::move(request));
}

void StepStreams::Forget(ConnectionId connection) {
  for (const auto& job : context_.tables->jobs) {
    for (const RunningSteps& steps : job->running_steps) {
      if (steps.connection != connection) continue;
      steps.asker_gone->store(true, std::memory_order_relaxed);
      steps.feed->Close();
    }
  }
}

void StepStreams::End(const SaveResult& result) {
  if (result.goes_on) return;  // the loop checks its updates again
  for (const auto& job : context_.tables->jobs) {
    if (!job->updates.DropGate(GateOf(result.connection))) continue;
    std::erase_if(job->running_steps, [&result](const RunningSteps& steps) {
      return steps.connection == result.connection;
    });
  }
  context_.Send(StepsDone{result.connection, result.result});
}

}  // namespace tidepool::memserver
