#include "memserver/loop/resent_requests.h"

#include "base/planted.h"
#include "memserver/traffic/request_check.h"

namespace tidepool::memserver {
namespace {

// The answer for the last sealed step.
shm::Completion SealedAnswer(const Job& job, const shm::Request& request) {
  const StepRecord& step = job.states->last_step();
  shm::Completion completion{};
  completion.counter = request.counter;
  completion.op = request.op;
  completion.version = step.version;
  completion.grad_norm = step.grad_norm;
  completion.skipped = step.skipped;
  return completion;
}

// True for a request of the open step whose attempt was found not finite.
bool IsOfDropped(const Job& job, Version version, uint32_t flags) {
  if (job.run_broken() || version != job.states->sealed_version()) return false;
  return AttemptOf(*job.states, flags) == OfAttempt::kDropped;
}

}  // namespace

bool IsApplied(SessionSlot* slot, const shm::Request& request) {
  JobStates& states = *slot->job->states;
  const ShardIntake& intake = states.intake(request.chunk, slot->rank);
  switch (static_cast<shm::Op>(request.op)) {
    case shm::Op::kPutWeights: {
      // A moment is put again, to its place, until its chunk is whole.
      if (request.micro_batch != shm::kPutMaster)
        return states.chunk(request.chunk).version != kNoVersion;
      const uint64_t begin = states.ShardBegin(request.chunk, slot->rank);
      return states.weights_ready() ||
             request.element_begin + request.element_count <= begin + intake.put_elements;
    }
    case shm::Op::kSubmitGradient:
      // There is nothing left to apply it to.
      if (IsOfDropped(*slot->job, request.version, request.flags)) return true;
      if (request.version == states.sealed_version())
        return (shm::IsSummed(request) ? intake.micro_batches_accepted > 0
                                       : request.micro_batch < intake.micro_batches_accepted) &&
               !TP_PLANTED("traffic.resent_gradient_again");
      return request.version + 1 == states.sealed_version();

    case shm::Op::kFetch:
    case shm::Op::kEndStep:
    case shm::Op::kGroupNumbers:
    case shm::Op::kUntouched:
    case shm::Op::kStepFacts:
    case shm::Op::kBeginAt:
    case shm::Op::kClaimFrozen: break;
  }
  return false;
}

bool AnswerResentEnd(SessionSlot* slot, const shm::EndStepRequest& request) {
  Job* job = slot->job;
  if (request.version + 1 == job->states->sealed_version() &&
      !TP_PLANTED("traffic.resent_end_again")) {
    Answer(slot, SealedAnswer(*job, shm::AsRequest(request)));
    return true;
  }
  if (job->run_broken() || request.version != job->states->sealed_version()) return false;
  // An end without an attempt is judged by the rank's gradients, which had all been answered before
  // it: if they are gone, the former server had found one that was not finite. A rank without
  // chunks has no gradients to judge by.
  const bool named = shm::AttemptIn(request.flags).has_value();
  const bool is_over = named ? IsOfDropped(*job, request.version, request.flags)
                             : !job->intake.RankComplete(slot->rank);
  if (!is_over) return false;
  Answer(slot, Failure(shm::AsRequest(request), ErrorId::kNonFinite));
  return true;
}

bool IsPassedOver(const Job& job, const shm::Request& request) {
  return request.op == static_cast<uint32_t>(shm::Op::kFetch) &&
         request.version < job.states->sealed_version();
}

}  // namespace tidepool::memserver
