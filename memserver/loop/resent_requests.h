// Requests that a rank sends again, because the server that it sent them to ended without
// answering: what kept memory says of them.
//
// One thread (the serve loop). Only requests with the flag shm::IsResent are asked about.
#pragma once

#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

// True when the effect of a put or a gradient is in kept memory: it is answered and not done again.
// (A fetch has none.)
bool IsApplied(SessionSlot* slot, const shm::Request& request);

// Answers an end of step, or what came with it (shm::IsStepNumbers), whose outcome is in kept
// memory: its step was sealed, or its attempt was found not to be finite. False when it has to be
// handled as a new one.
bool AnswerResentEnd(SessionSlot* slot, const shm::EndStepRequest& request);

// True for a fetch that was sent before the rank ended its step: the sealed step was finished
// without waiting for it.
bool IsPassedOver(const Job& job, const shm::Request& request);

}  // namespace tidepool::memserver
