// Top: rates between two looks at the server, one line per job.
//
// One thread; blocks for the time between the two looks.
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
  double optimizer_share = 0;  // share of all jobs' optimizer traffic in this interval
};

// All jobs' rates, and the status at the end.
struct TopView {
  StatusView status;  // at the end
  double seconds = 0;
  // Per second.
  double bytes_to_ranks = 0, bytes_from_ranks = 0, parameters = 0, nvme_read = 0, nvme_written = 0;
  // The busiest job first.
  std::vector<TopJob> jobs;
};

// The answers of one look.
struct TopLook {
  StatusView status;
  std::vector<JobView> jobs;
};
// Jobs missing in the first look have no rates yet; restarted counters count as 0.
TopView Compare(const TopLook& before, const TopLook& after);

// Takes two looks, --watch apart (1 s).
Result<Shown> RunTop(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
