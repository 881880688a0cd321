// Answers: translates the server's completion of a request into an outcome or an error.
//
// Pure functions; any thread.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "shm/messages.h"

namespace tidepool::client {

// The request in words, for error texts: "fetch chunk 3".
std::string Described(const shm::Request& request);
// The outcome, or the completion's error with its request and job. If the server refused the
// numbers of a step end, the error is kConfigBadValue with these numbers.
Result<Outcome> OutcomeOf(const shm::Completion& completion, const shm::Request& request,
                          JobId job);

}  // namespace tidepool::client
