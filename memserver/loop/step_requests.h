// Requests that name a step and no chunk: its end, what is said of it before, and the step behind
// which a job begins.
//
// One thread (the serve loop). Their words are a rank's: a request that an honest client cannot
// send is a violation of its slot, and ends the session.
#pragma once

#include "memserver/jobs/sessions/session_slot.h"
#include "shm/messages.h"

namespace tidepool::memserver {

// kEndStep, kBeginAt, and what shm::IsStepNumbers is true for.
bool IsOfStep(const shm::Request& request);
// Answers it, lets it wait for the other ranks, or notes a violation. Requires IsOfStep.
void HandleStepRequest(SessionSlot* slot, const shm::Request& request);

}  // namespace tidepool::memserver
