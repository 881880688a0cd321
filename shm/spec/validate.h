// Validate: does a job's description keep the rules of shm/spec/job_spec.h?
//
// A pure function, any thread.
#pragma once

#include "base/status.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// Errors: kJobSpecBad, which names the first broken rule.
Status Validate(const JobSpec& spec);

}  // namespace tidepool::shm
