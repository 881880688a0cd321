// PlanChoice: what --plan has come to: the way in which a run's steps go, beside the presets, and
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

// The most that the rCache of a rank may take, in bytes, resident chunks included.
struct RcacheLimit {
  uint64_t bytes = 0;
  std::string origin;  // "--rcache 64MiB"
};

struct PlanChoice {
  PlanWay way;
  std::vector<PlanWay> presets;
  std::optional<RcacheLimit> limit;
};

// The way of --plan `name`, a preset, where it fits. zero3 takes fewer blocks to fetch ahead into
// where the limit leaves no room for both. Errors: kUsageError (no such preset), kRcacheTooSmall
// (with the size that would fit, and the other presets').
Result<PlanChoice> ChoosePreset(const std::string& name, const std::vector<PlanWay>& presets,
                                const std::optional<RcacheLimit>& limit, const RankStep& step);

// Some lines, shown below those of the plan.
std::string DescribePlanChoice(const PlanChoice& choice);
// Writes one object; the caller has written its key.
void WritePlanChoice(const PlanChoice& choice, JsonWriter* json);

}  // namespace tidepool::trainer
