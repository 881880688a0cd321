// FuzzedSpec: a job specification made of fuzz bytes: mostly sound, with a number out of range here
// and there.
//
// Pure function of the input.
#pragma once

#include "shm/spec/job_spec.h"
#include "tests/fuzz/fuzz_input.h"

namespace tidepool::fuzz {

shm::JobSpec FuzzedSpec(FuzzInput* input);

}  // namespace tidepool::fuzz
