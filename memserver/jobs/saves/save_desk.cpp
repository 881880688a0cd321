#include "memserver/jobs/saves/save_desk.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/buggify.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "memserver/traffic/gpu_states.h"
#include "memserver/traffic/spill_reader.h"

namespace tidepool::memserver {
namespace {

std::shared_ptr<GpuStatesReader> GpuReaderOf(const Job& job) {
  return job.states->uses_gpus() ? std::make_shared<GpuStatesReader>(*job.states, job.gpus.shares())
                                 : nullptr;
}

std::shared_ptr<SpillReader> SpillReaderOf(const Job& job, const StateTier* tier) {
  if (!job.states->spills()) return nullptr;
  std::vector<SpillReader::File> files;
  for (uint32_t d = 0; d < tier->directories().size(); ++d) {
    files.push_back({tier->directory(d).data_fd, tier->store_nonce(d)});
  }
  return std::make_shared<SpillReader>(*job.states, std::move(files));
}

// What the save reads, in the order of the job's parameters. Called on the thread that reads for
// the save, because there may be many tensors.
std::vector<SavedTensor> TensorsOf(const JobStates& states,
                                   const std::shared_ptr<SpillReader>& spilled,
                                   const std::shared_ptr<GpuStatesReader>& on_gpus) {
  TP_POINT("server.save_listed");
  std::vector<SavedTensor> tensors;
  for (const shm::ParameterSpec& parameter : states.spec().parameters) {
    const Chunk& chunk = states.saved(parameter.chunk);
    SavedTensor tensor{parameter.name, parameter.dims, nullptr, parameter.element_count};

    if (chunk.planes.master == nullptr && chunk.on_gpu) {
      tensor.read = [on_gpus, chunk = parameter.chunk, begin = parameter.element_begin](
                        uint64_t first, std::span<float> values) {
        return on_gpus->Read(chunk, begin + first, values);
      };
    } else if (chunk.planes.master == nullptr) {
      tensor.read = [spilled, chunk = parameter.chunk, begin = parameter.element_begin](
                        uint64_t first, std::span<float> values) {
        return spilled->Read(chunk, begin + first, values);
      };
      // The two halves of a number lie in two planes.
    } else if (chunk.is_split()) {
      tensor.high =
          reinterpret_cast<const uint16_t*>(chunk.planes.param16) + parameter.element_begin;
      tensor.rest = reinterpret_cast<const int16_t*>(chunk.planes.master) + parameter.element_begin;
    } else {
      tensor.data = reinterpret_cast<const float*>(chunk.planes.master) + parameter.element_begin;
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// True if a step skipped a parameter: its moments then have fewer steps than others.
bool HasLeftAlone(const JobStates& states) {
  const auto said = states.records().slots().Of(states.sealed_version());
  return said && std::any_of(said->words.begin(), said->words.end(),
                             [](uint32_t word) { return StepsMissed(word) > 0; });
}

Status CheckComplete(const JobStates& states) {
  if (!HasLeftAlone(states)) return Status();
  return Status(ErrorId::kSaveFailed,
                "a checkpoint does not hold which steps have left parameters alone");
}

}  // namespace

Status SaveDesk::Check(const SessionSlot* slot, const SaveWeights& event) {
  if (slot == nullptr) return Status(ErrorId::kSaveFailed, "the session has ended");
  const Job& job = *slot->job;
  if (!job.IsRecorded() || !job.states->weights_ready())
    return Status(ErrorId::kSaveFailed, "the job has no weights yet");
  if (event.version != job.states->sealed_version()) {
    return Status(ErrorId::kSaveFailed, "version " + std::to_string(event.version) +
                                            " is not the last sealed one, " +
                                            std::to_string(job.states->sealed_version()));
  }

  const auto of_this = [&event](ConnectionId connection) { return connection == event.connection; };
  if (event.stream != nullptr) TP_RETURN_IF_ERROR(CheckComplete(*job.states));
  const bool busy = std::any_of(job.running_saves.begin(), job.running_saves.end(), of_this) ||
                    std::any_of(job.waiting_saves.begin(), job.waiting_saves.end(),
                                [&](const auto& s) { return of_this(s.connection); });
  if (busy) return Status(ErrorId::kSaveFailed, "this rank's save before is not done yet");
  return Status();
}

void SaveDesk::Request(SaveWeights event) {
  SessionSlot* slot = context_.tables->FindSlot(event.connection);
  if (const Status status = Check(slot, event); !status.ok()) {
    // The control side tells the sender's lane that the descriptor is closed (descriptor_door.h).
    event.directory.Reset();
    context_.Send(SaveDone{event.connection, status});
    return;
  }
  // Poll starts it as soon as all chunks have the sealed version, and before a later step can be
  // sealed.
  WaitingSave save{event.connection, std::move(event.directory), std::move(event.name),
                   ++last_number_};
  save.stream = std::move(event.stream);
  slot->job->waiting_saves.push_back(std::move(save));
}

// The job of this name, if the user may read its states: its own, and any for root and the user of
// memserver, who could read its memory as well. Others learn nothing of it.
Result<Job*> SaveDesk::JobToGive(const AskStates& event) const {
  if (context_.tables->draining) return context_.tables->WhyStopping();
  Job* const job = context_.tables->FindNamed(event.job);
  const bool may_all = event.uid == 0 || event.uid == geteuid();
  const bool may = job != nullptr && (job->uid == event.uid || may_all);
  if (!may && !(job != nullptr && TP_PLANTED("saves.given_to_anybody")))
    return Status(ErrorId::kAdminNotFound, "no job has the number or name '" + event.job + "'")
        .Fix("memctl ps lists your jobs; only the user of a job takes its states");

  if (!job->IsRecorded() || !job->states->weights_ready())
    return Status(ErrorId::kSaveFailed, "the job has no weights yet")
        .Fix("ask again when it has made a step");
  TP_RETURN_IF_ERROR(CheckComplete(*job->states));
  return job;
}

void SaveDesk::Ask(AskStates event) {
  Result<Job*> found = JobToGive(event);
  if (!found.ok()) return context_.Send(Refused{event.connection, found.status()});
  Job* const job = *found;
  WaitingSave save{event.connection, {}, "a snapshot", ++last_number_};
  save.stream = event.memory;
  save.of_no_rank = true;
  job->waiting_saves.push_back(std::move(save));

  context_.log->Tell(
      job->uid, LogLevel::kInfo, "states are given away",
      {{"job", job->id}, {"version", job->states->sealed_version()}, {"to_uid", event.uid}});
  context_.Send(StatesGiven{event.connection, job->states->sealed_version(),
                            job->states->shared_spec(), job->note, std::move(event.memory)});
}

// True when a save could begin now if it had a lane.
TP_HOT bool SaveDesk::HasReady(const Job& job) {
  return !job.waiting_saves.empty() && !job.updates.active();
}

// Lanes go in the order of requests, among all saves that may have one.
bool SaveDesk::HasLaneFor(const Job& job) {
  if (!lanes_.HasFree(job.uid)) return false;
  const uint64_t number = job.waiting_saves.front().number;
  return std::none_of(context_.tables->jobs.begin(), context_.tables->jobs.end(),
                      [&](const auto& other) {
                        return HasReady(*other) && other->waiting_saves.front().number < number &&
                               lanes_.HasFree(other->uid);
                      });
}

// Why the save ends without having begun; ok: it still waits.
Status SaveDesk::WhyNotSaved(const Job& job, const WaitingSave& save, int64_t now) {
  const bool stuck = lanes_.AllStuck(job.uid);
  const int64_t waited_ns = save.waits_since_ns ? now - *save.waits_since_ns : 0;
  if (!stuck && waited_ns < SaveLanes::kWaitNs) return Status();

  const std::string held = lanes_.WhatHolds(job.uid);
  const std::string who =
      held.empty() ? "other users' saves are in work" : "in work for this user: " + held;
  return Status(ErrorId::kSaveFailed,
                "saving '" + save.name + "' has not begun: too many saves at once")
      .Why(who + (stuck ? "" : ", and none has ended for " + FormatNs(SaveLanes::kWaitNs)))
      .Fix("look at where these directories lie: a server that is gone, a drive that hangs");
}

// Handles the job's first save when it has no lane: it waits on or is refused. True when it waits.
bool SaveDesk::StaysWaiting(Job* job, int64_t now) {
  WaitingSave& first = job->waiting_saves.front();
  const Status why = WhyNotSaved(*job, first, now);
  if (!why.ok()) {
    context_.Send(SaveDone{first.connection, why});
    job->waiting_saves.erase(job->waiting_saves.begin());
    return false;
  }

  if (!first.waits_since_ns) {
    context_.log->Tell(
        job->uid, LogLevel::kInfo, "a save waits for others to end",
        {{"job", job->id}, {"file", first.name}, {"in_work", lanes_.WhatHolds(job->uid)}});
  }
  first.waits_since_ns = first.waits_since_ns.value_or(now);
  return true;
}

TP_HOT bool SaveDesk::Poll(Job* job) {
  bool worked = false;
  while (HasReady(*job) && !TP_BUGGIFY("desk.save_later")) {
    const int64_t now = context_.neighbours.clock->NowNs();
    if (HasLaneFor(*job)) {
      WaitingSave save = std::move(job->waiting_saves.front());
      job->waiting_saves.erase(job->waiting_saves.begin());
      Start(job, std::move(save), now);
    } else if (StaysWaiting(job, now)) {
      break;
    }

    worked = true;
  }
  return worked;
}

void SaveDesk::Start(Job* job, WaitingSave save, int64_t now) {
  SaveRequest request;
  request.connection = save.connection;
  request.lane =
      lanes_.Take(job->uid, save.connection, "'" + save.name + "' of " + job->spec().name);
  request.waited_ns = save.waits_since_ns ? now - *save.waits_since_ns : 0;
  request.directory = std::move(save.directory);
  request.name = std::move(save.name);

  if (save.stream != nullptr) return StartStream(job, std::move(save), std::move(request));
  request.list = [states = job->states.get(),
                  spilled = SpillReaderOf(*job, context_.neighbours.tier),
                  on_gpus = GpuReaderOf(*job)] { return TensorsOf(*states, spilled, on_gpus); };
  if (TP_PLANTED("jobs.listed_on_the_loop")) request.tensors = std::exchange(request.list, {})();
  const StepRecord& step = job->states->last_step();
  request.metadata = {{"tidepool.job", job->spec().name},
                      {"tidepool.version", std::to_string(job->states->sealed_version())},
                      {"tidepool.optimizer_step", std::to_string(step.optimizer_step)},
                      {"tidepool.data_cursor", std::to_string(step.data_cursor)}};

  job->updates.Hold();
  job->running_saves.push_back(request.connection);
  TP_POINT("server.save_started");
  context_.neighbours.saves->Push(std::move(request));
}

// Holds nothing except the chunks that are not copied yet.
void SaveDesk::StartStream(Job* job, WaitingSave save, SaveRequest request) {
  const size_t chunks = job->spec().chunks.size();
  StreamTask task{.memory = std::move(save.stream),
                  .states = job->states.get(),
                  .spilled = SpillReaderOf(*job, context_.neighbours.tier),
                  .on_gpus = GpuReaderOf(*job),
                  .order = job->updates.NextOrder(),
                  .step = job->states->last_step(),
                  .gate = std::make_shared<StreamGate>(chunks),
                  .opened = nullptr};

  task.asker_reads = save.of_no_rank;
  task.step.version = job->states->sealed_version();
  // A chunk off the host has two slots: its next update does not overwrite the saved states.
  const auto has_two_slots = [states = job->states.get(),
                              epoch = job->states->epoch()](ChunkId id) {
    return states->saved(id).states_off_host() && states->epoch() <= epoch + 1;
  };
  job->updates.SetGate(request.connection, [gate = task.gate, has_two_slots](ChunkId id) {
    return gate->IsOpen(id) || has_two_slots(id);
  });

  job->running_saves.push_back(request.connection);
  askers_[request.connection] = task.asker_gone;
  const bool asker_left =
      !save.of_no_rank && context_.tables->FindSlot(request.connection) == nullptr;
  if (asker_left) Forget(request.connection);
  request.stream = std::move(task);
  TP_POINT("server.stream_started");
  context_.neighbours.saves->Push(std::move(request));
}

void SaveDesk::Forget(ConnectionId connection) {
  // Its own reader has gone with a process that is no rank.
  for (const auto& job : context_.tables->jobs) {
    std::erase_if(job->waiting_saves, [connection](const WaitingSave& save) {
      return save.of_no_rank && save.connection == connection;
    });
  }
  const auto found = askers_.find(connection);
  if (found != askers_.end()) found->second->store(true, std::memory_order_relaxed);
}

void SaveDesk::End(const SaveResult& saved) {
  if (saved.goes_on) return;  // the loop checks its updates again
  lanes_.End(saved.connection);
  askers_.erase(saved.connection);
  for (const auto& job : context_.tables->jobs) {
    const auto it =
        std::find(job->running_saves.begin(), job->running_saves.end(), saved.connection);
    if (it == job->running_saves.end()) continue;
    job->running_saves.erase(it);
    if (!job->updates.DropGate(saved.connection)) job->updates.Release();
    break;
  }

  TP_POINT("server.save_ended");
  context_.Send(SaveDone{saved.connection, saved.result});
}

}  // namespace tidepool::memserver
