// Validate: checks a job's description against the rules of shm/spec/job_spec.h.
//
// A pure function, any thread.
#pragma once

#include "base/status.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// Checks a description. Errors: kJobSpecBad, which names the first broken rule.
Status Validate(const JobSpec& spec);

}  // namespace tidepool::shm
