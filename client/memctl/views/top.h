// Top: what moves: rates between two looks at the server, one line a job.
//
// One thread; takes as long as lies between the two looks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"
#include "client/admin/views.h"

namespace tidepool::client {

// A job's rates.
struct TopJob {
  JobView job;
  double steps_a_second = 0, optimizer_bytes_a_second = 0;
  double optimizer_share = 0;  // share of what all jobs had in this time
};

// The rates of all, and what the server said at the end.
struct TopView {
  StatusView status;  // at the end
  double seconds = 0;
  // A second.
  double bytes_to_ranks = 0, bytes_from_ranks = 0, parameters = 0, nvme_read = 0, nvme_written = 0;
  // The busiest first.
  std::vector<TopJob> jobs;
};

// What a moment is made of.
struct TopLook {
  StatusView status;
  std::vector<JobView> jobs;
};
// Jobs that were not there at the first look have no rates yet; counters that began anew count as
// 0.
TopView Compare(const TopLook& before, const TopLook& after);

// Looks twice, --watch apart (1 s).
Result<Shown> RunTop(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
