// The smallest description of a job that is valid: one rank, one chunk, one parameter.
#pragma once

#include "shm/spec/job_spec.h"

namespace tidepool::testing {

inline shm::JobSpec SmallSpec() {
  shm::JobSpec spec;
  spec.name = "job";
  spec.rcache_bytes = 8192;
  spec.parameter_groups = {{1.0F, 0.0F}};
  spec.data_groups = {{0b1}};
  spec.chunks = {{64, 0}};
  spec.parameters = {{"w", {64}, 0, 0, 0, 64}};
  return spec;
}

}  // namespace tidepool::testing
