// MakeSums: sums up the memory that a job's states take.
//
// A pure function, any thread.
#pragma once

#include <memory>

#include "shm/spec/job_spec.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::shm {

std::shared_ptr<const SpecSums> MakeSums(const JobSpec& spec);

}  // namespace tidepool::shm
