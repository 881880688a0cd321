// DifferenceOf: the differences between two job descriptions, for people.
//
// Any thread; a pure function.
#pragma once

#include <string>

#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// "max_grad_norm 1, now 0.5; micro_batches 1, now 2": all numbers that differ, then the first
// chunk, parameter, or frozen chunk that differs. Empty if nothing differs. The names of the jobs
// are not compared.
std::string DifferenceOf(const JobSpec& held, const JobSpec& said);

}  // namespace tidepool::shm
