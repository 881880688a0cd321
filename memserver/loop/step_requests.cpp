#include "memserver/loop/step_requests.h"

#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/loop/resent_requests.h"
#include "memserver/traffic/request_check.h"
#include "memserver/update/seal.h"

namespace tidepool::memserver {
namespace {

using shm::Request;

// Ends all ranks of the job, since it is unknown which of them is wrong.
void EndAll(Job* job, const char* why) {
  for (SessionSlot* slot : job->slots) {
    if (slot != nullptr) slot->violation = why;
  }
}

// True if the rank names the same group numbers as the ranks that have ended the step.
bool AgreesWithEnded(const Job& job, Rank rank) {
  for (Rank other = 0; other < job.spec().world; ++other) {
    if (job.step.HasEnded(other) && !job.numbers.Agree(rank, other)) return false;
  }
  return true;
}

// Takes group numbers, and parameters that no backward has reached.
void TakeNumbers(SessionSlot* slot, const Request& request) {
  Job* job = slot->job;
  // They share the outcome of the end that follows them.
  if (shm::IsResent(request.flags) && AnswerResentEnd(slot, shm::AsEndStep(request))) return;
  if (job->run_broken()) return Answer(slot, Failure(request, ErrorId::kPeerLost));
  slot->violation = CheckOpenStep(*job->states, request.version, request.flags);
  if (slot->violation != nullptr) return;
  if (job->step.HasEnded(slot->rank)) {
    slot->violation = "numbers of a step came after the rank had ended it";
    return;
  }

  if (!job->states->records().slots().Exist()) {
    const bool has_numbers = request.op == static_cast<uint32_t>(shm::Op::kGroupNumbers);
    // Such a job continues as it began: a parameter that no backward reaches has a zero gradient.
    if (has_numbers) slot->violation = "the job began with a release that keeps no such numbers";
    if (!has_numbers) Answer(slot, Success(request, 0));
    return;
  }
  slot->violation = job->numbers.Take(slot->rank, request);
  TP_POINT("server.step_numbers_taken");
}

// Begins the job behind the step of a checkpoint.
void BeginAt(SessionSlot* slot, const shm::BeginAtRequest& request) {
  Job* job = slot->job;
  const shm::Request asked = shm::AsRequest(request);
  if (job->run_broken()) return Answer(slot, Failure(asked, ErrorId::kPeerLost));
  slot->violation = CheckBeginAt(*job->states, request);
  if (slot->violation != nullptr) return;

  BeginAtStep(job->states.get(), request);
  TP_POINT("server.begun_at_step");
  Answer(slot, Success(asked, 0));
}

void EndStep(SessionSlot* slot, const shm::EndStepRequest& request) {
  Job* job = slot->job;
  if (shm::IsResent(request.flags) && AnswerResentEnd(slot, request)) return;
  if (job->run_broken()) {
    Answer(slot, Failure(shm::AsRequest(request), ErrorId::kPeerLost));
    return;
  }
  if (!HasUsableNumbers(request) && !TP_PLANTED("step.numbers_unchecked")) {
    Answer(slot, Failure(shm::AsRequest(request), ErrorId::kConfigBadValue));
    return;
  }

  slot->violation = CheckEndStep(*job->states, request);
  if (slot->violation != nullptr) return;
  if (job->step.HasEnded(slot->rank)) {
    slot->violation = "the rank has ended this step already";
  } else if (!job->intake.RankComplete(slot->rank)) {
    slot->violation = "the step ended before all gradients of the rank were submitted";
  } else if (!AgreesWithEnded(*job, slot->rank)) {
    EndAll(job, "ranks end a step with different numbers of a parameter group");
  } else if (const char* differs = job->step.End(slot->rank, request)) {
    EndAll(job, differs);
  }

  TP_POINT("server.step_ended_by_rank");
}

}  // namespace

TP_HOT bool IsOfStep(const Request& request) {
  return request.op == static_cast<uint32_t>(shm::Op::kEndStep) ||
         request.op == static_cast<uint32_t>(shm::Op::kBeginAt) || shm::IsStepNumbers(request);
}

void HandleStepRequest(SessionSlot* slot, const Request& request) {
  if (shm::IsStepNumbers(request)) return TakeNumbers(slot, request);
  if (request.op == static_cast<uint32_t>(shm::Op::kBeginAt))
    return BeginAt(slot, shm::AsBeginAt(request));
  EndStep(slot, shm::AsEndStep(request));
}

}  // namespace tidepool::memserver
