// The objects that a read request asks for: a job, a chunk, a page of chunks or parameters.
//
// The admin thread only; pure functions of one request and one snapshot. Errors: kAdminBadRequest
// and kAdminNotFound, which list what exists instead.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "memserver/admin/reports/report.h"
#include "memserver/admin/request_target.h"

namespace tidepool::memserver {

// A handler's arguments.
struct Ask {
  const RequestTarget& target;
  const SnapshotLook& look;
  const ServerFacts& facts;
};

// The job that the path names by number, else by name.
Result<const JobRow*> JobInPath(const Ask& ask);
// The job of the parameter `job`, or all jobs if it is not given.
Result<std::vector<const JobRow*>> ChosenJobs(const Ask& ask);
// The parameter `by` of a residency picture.
Result<ResidencyBy> ReadBy(const RequestTarget& target);
Result<ChunkPage> ReadPage(const Ask& ask);
Result<TensorPage> ReadTensorPage(const Ask& ask);
// The report of the chunk that the path names. Chunk numbers are within a job; if there is only one
// job, that one is meant.
Result<std::string> ChunkInPath(const Ask& ask);

}  // namespace tidepool::memserver
