// Requests that a rank sends again because a former server ended without answering them: their
// outcome according to kept memory.
//
// One thread (the serve loop). Called only for requests with the flag shm::IsResent.
#pragma once

#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

// True if the effect of a put or a gradient is in kept memory: it is answered and not done again.
// (A fetch has no effect.)
bool IsApplied(SessionSlot* slot, const shm::Request& request);

// Answers an end of step, or what came with it (shm::IsStepNumbers), whose outcome is in kept
// memory: its step was sealed, or its attempt was found not finite. False if it has to be handled
// as a new one.
bool AnswerResentEnd(SessionSlot* slot, const shm::EndStepRequest& request);

// True for a fetch that was sent before the rank ended its step, where the step was sealed without
// waiting for it.
bool IsPassedOver(const Job& job, const shm::Request& request);

}  // namespace tidepool::memserver
