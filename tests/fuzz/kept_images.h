// KeptImages: kept memory as killed servers leave it: index and pool of small jobs, taken at chosen
// instructions of a run.
//
// One thread. All images are of pools of the same geometry.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "memserver/residency/kept/kept_index.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

struct KeptImage {
  std::string
      name;  // "plain: server.step_sealed": the job, and the point at which the server was killed
  std::vector<std::byte> index, pool;
  std::vector<IndexedJob> jobs;
  std::vector<shm::JobSpec> specs;  // of the jobs
};

inline constexpr uint64_t kImagePoolBytes = 160 * 1024;

std::vector<KeptImage> MakeKeptImages();

}  // namespace tidepool::memserver
