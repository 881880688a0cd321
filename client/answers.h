// Answers: what the server's completion of a request means for who asked.
//
// Pure functions; any thread.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "shm/messages.h"

namespace tidepool::client {

// What was asked for, for error texts: "fetch chunk 3".
std::string Described(const shm::Request& request);
// The outcome, or the error that the completion names, with the request and the job that it is of.
// A step end whose numbers the server refused is kConfigBadValue, with these numbers.
Result<Outcome> OutcomeOf(const shm::Completion& completion, const shm::Request& request,
                          JobId job);

}  // namespace tidepool::client
