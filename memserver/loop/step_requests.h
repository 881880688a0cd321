// Requests that name a step and no chunk: its end, the data sent before it, and the step behind
// which a job begins.
//
// One thread (the serve loop). They come from a peer: a request that an honest client cannot send
// is a violation of its slot, and ends the session.
#pragma once

#include "memserver/jobs/sessions/session_slot.h"
#include "shm/messages.h"

namespace tidepool::memserver {

// True for kEndStep, kBeginAt, and requests for which shm::IsStepNumbers is true.
bool IsOfStep(const shm::Request& request);
// Answers it, lets it wait for the other ranks, or notes a violation. Requires IsOfStep.
void HandleStepRequest(SessionSlot* slot, const shm::Request& request);

}  // namespace tidepool::memserver
