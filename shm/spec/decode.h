// Decode: a job's description out of bytes that a peer or an earlier server has written.
//
// A pure function, any thread. It trusts no number before it is checked.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// The description with its sums; it is valid (shm/spec/validate.h). Errors: kJobSpecBad. Cost is
// linear in bytes.size(); nothing is allocated beyond a small multiple of it.
Result<JobSpec> Decode(std::span<const std::byte> bytes);

}  // namespace tidepool::shm
