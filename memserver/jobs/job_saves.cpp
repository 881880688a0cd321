// JobDesk: when each save begins, and what it holds meanwhile.
#include <algorithm>
#include <string>
#include <utility>

#include "base/buggify.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/traffic/gpu_states.h"
#include "memserver/traffic/spill_reader.h"

namespace tidepool::memserver {
namespace {

std::shared_ptr<GpuStatesReader> GpuReaderOf(const Job& job) {
  return job.states->uses_gpus() ? std::make_shared<GpuStatesReader>(*job.states, job.gpus.shares())
                                 : nullptr;
}

// The thread that reads for the save: there may be many.
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
    } else if (states.is_split()) {
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

}  // namespace

Status JobDesk::CheckSave(const Seat* seat, const SaveWeights& event) const {
  if (seat == nullptr) return Status(ErrorId::kSaveFailed, "the session has ended");
  const Job& job = *seat->job;
  if (!job.IsRecorded() || !job.states->weights_ready())
    return Status(ErrorId::kSaveFailed, "the job has no weights yet");
  if (event.version != job.states->sealed_version()) {
    return Status(ErrorId::kSaveFailed, "version " + std::to_string(event.version) +
                                            " is not the last sealed one, " +
                                            std::to_string(job.states->sealed_version()));
  }
  const auto of_this = [&event](ConnectionId connection) { return connection == event.connection; };
  const bool busy = std::any_of(job.running_saves.begin(), job.running_saves.end(), of_this) ||
                    std::any_of(job.waiting_saves.begin(), job.waiting_saves.end(),
                                [&](const auto& s) { return of_this(s.connection); });
  if (busy) return Status(ErrorId::kSaveFailed, "this rank's save before is not done yet");
  return Status();
}

void JobDesk::On(SaveWeights event) {
  Seat* seat = tables_->FindSeat(event.connection);
  if (const Status status = CheckSave(seat, event); !status.ok()) {
    // The control side tells the sender's lane that it is closed (descriptor_door.h).
    event.directory.Reset();
    Send(SaveDone{event.connection, status});
    return;
  }
  // Started by TendSaves as soon as all chunks have the sealed version, and before a later step can
  // be sealed.
  WaitingSave save{event.connection, std::move(event.directory), std::move(event.name),
                   ++tables_->last_save};
  seat->job->waiting_saves.push_back(std::move(save));
}

// True when a save could begin now, were there a lane for it.
bool JobDesk::HasReadySave(const Job& job) {
  return !job.waiting_saves.empty() && !job.updates.active();
}

// Lanes go in the order of the requests, among all saves that may have one.
bool JobDesk::HasLaneFor(const Job& job) {
  SaveLanes& lanes = tables_->save_lanes;
  if (!lanes.HasFree(job.uid)) return false;
  const uint64_t number = job.waiting_saves.front().number;
  return std::none_of(tables_->jobs.begin(), tables_->jobs.end(), [&](const auto& other) {
    return HasReadySave(*other) && other->waiting_saves.front().number < number &&
           lanes.HasFree(other->uid);
  });
}

// Why the save ends without having begun; ok: it goes on waiting.
Status JobDesk::WhyNotSaved(const Job& job, const WaitingSave& save, int64_t now) {
  const bool stuck = tables_->save_lanes.AllStuck(job.uid);
  const int64_t waited_ns = save.waits_since_ns ? now - *save.waits_since_ns : 0;
  if (!stuck && waited_ns < SaveLanes::kWaitNs) return Status();
  const std::string held = tables_->save_lanes.WhatHolds(job.uid);
  const std::string who =
      held.empty() ? "other users' saves are in work" : "in work for this user: " + held;
  return Status(ErrorId::kSaveFailed,
                "saving '" + save.name + "' has not begun: too many saves at once")
      .Why(who + (stuck ? "" : ", and none has ended for " + FormatNs(SaveLanes::kWaitNs)))
      .Fix("look at where these directories lie: a server that is gone, a drive that hangs");
}

// The hold on the job's updates begins with the write: a save that waits for a lane holds up
// nothing but its own job's next seal, which it comes before.
bool JobDesk::TendSaves(Job* job) {
  bool worked = false;
  while (HasReadySave(*job) && !TP_BUGGIFY("desk.save_later")) {
    WaitingSave& first = job->waiting_saves.front();
    const int64_t now = parts_.clock->NowNs();
    if (!HasLaneFor(*job)) {
      const Status why = WhyNotSaved(*job, first, now);
      if (why.ok()) {
        if (!first.waits_since_ns) {
          Tell(job->uid, LogLevel::kInfo, "a save waits for others to end",
               {{"job", job->id},
                {"file", first.name},
                {"in_work", tables_->save_lanes.WhatHolds(job->uid)}});
        }
        first.waits_since_ns = first.waits_since_ns.value_or(now);
        break;
      }
      Send(SaveDone{first.connection, why});
      job->waiting_saves.erase(job->waiting_saves.begin());
      worked = true;
      continue;
    }

    WaitingSave save = std::move(first);
    job->waiting_saves.erase(job->waiting_saves.begin());
    StartSave(job, std::move(save), now);
    worked = true;
  }
  return worked;
}

std::shared_ptr<SpillReader> JobDesk::ReaderOf(const Job& job) const {
  if (!job.states->spills()) return nullptr;
  std::vector<SpillReader::File> files;
  for (uint32_t d = 0; d < parts_.tier->directories().size(); ++d) {
    files.push_back({parts_.tier->directory(d).data_fd, parts_.tier->store_nonce(d)});
  }
  return std::make_shared<SpillReader>(*job.states, std::move(files));
}

void JobDesk::StartSave(Job* job, WaitingSave save, int64_t now) {
  SaveRequest request;
  request.connection = save.connection;
  request.lane = tables_->save_lanes.Take(job->uid, save.connection,
                                          "'" + save.name + "' of " + job->spec().name);
  request.waited_ns = save.waits_since_ns ? now - *save.waits_since_ns : 0;
  request.directory = std::move(save.directory);
  request.name = std::move(save.name);
  request.list = [states = job->states.get(), spilled = ReaderOf(*job),
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
  parts_.saves->Push(std::move(request));
}

void JobDesk::HandleSaved(const SaveResult& saved) {
  tables_->save_lanes.End(saved.connection);
  for (const auto& job : tables_->jobs) {
    const auto it =
        std::find(job->running_saves.begin(), job->running_saves.end(), saved.connection);
    if (it == job->running_saves.end()) continue;
    job->running_saves.erase(it);
    job->updates.Release();
    break;
  }
  TP_POINT("server.save_ended");
  Send(SaveDone{saved.connection, saved.result});
}

}  // namespace tidepool::memserver
