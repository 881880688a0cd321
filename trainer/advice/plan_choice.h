// PlanChoice: the result of --plan: how a run's steps move data, compared with the presets, and
// why.
//
// Any thread; torch-free, pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/text/json_writer.h"
#include "trainer/plan/presets.h"

namespace tidepool::trainer {

inline constexpr const char* kAutoPlan = "auto";

// Limit of a rank's rCache, in bytes, resident chunks included.
struct RcacheLimit {
  uint64_t bytes = 0;
  std::string origin;  // "--rcache 64MiB"
};

struct PlanChoice {
  PlanWay way;
  std::vector<PlanWay> presets;
  std::optional<RcacheLimit> limit;
};

// The preset `name` of --plan, if it fits. zero3 uses fewer blocks to prefetch into if the limit
// does not allow both. Errors: kUsageError (no such preset), kRcacheTooSmall (with the size that
// would fit, and those of the other presets).
Result<PlanChoice> ChoosePreset(const std::string& name, const std::vector<PlanWay>& presets,
                                const std::optional<RcacheLimit>& limit, const RankStep& step);

// Several lines, printed below the plan.
std::string DescribePlanChoice(const PlanChoice& choice);
// Writes one object; the caller has already written its key.
void WritePlanChoice(const PlanChoice& choice, JsonWriter* json);

}  // namespace tidepool::trainer
