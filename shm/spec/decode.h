// Decode: reads a job's description from bytes that a peer or an earlier server has written.
//
// A pure function, any thread. It checks every number before it uses it.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// The valid description (shm/spec/validate.h) with its sums. Errors: kJobSpecBad. Cost is linear in
// bytes.size(); allocates no more than a small multiple of it.
Result<JobSpec> Decode(std::span<const std::byte> bytes);

}  // namespace tidepool::shm
