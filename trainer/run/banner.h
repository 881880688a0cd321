// What a run says of itself before its first step: three lines, or all that is known of it.
//
// Any thread; pure. Rank 0 says it once it has a seat at the server, so that an error of usage
// stands alone.
#pragma once

#include <string>

#include "trainer/launch/rank_place.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// What is not in the plan. `device` is empty on the CPU; `server` says where the job's states are.
struct BannerWords {
  std::string data, device, server;
};

std::string Banner(const RunPlan& plan, const RankPlace& place, const BannerWords& words);
// With --verbose and --dry-run: the whole plan. Ends behind the data.
std::string LongBanner(const RunPlan& plan, const RankPlace& place, const std::string& data);

}  // namespace tidepool::trainer
