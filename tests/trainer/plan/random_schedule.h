// Random small schedules that obey the rules of moments, for tests of plans and of the rCache.
#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "base/random.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

// `moments` uses of one or two of `chunks` chunks, mixed with gradient phases (kGradient or
// kBorrow, some uses later kSubmit).
inline AccessSchedule RandomSchedule(uint64_t seed, uint32_t chunks, uint32_t moments) {
  SplitMix64 random(seed);
  AccessSchedule schedule;
  std::vector<ChunkId> gradients;
  std::set<ChunkId> borrowed;
  while (schedule.moments.size() < moments) {
    const uint64_t dice = random.Below(10);
    Moment moment;
    moment.subject = static_cast<ChunkId>(random.Below(chunks));
    const auto open = std::find(gradients.begin(), gradients.end(), moment.subject);
    if (dice == 0 && open == gradients.end() && gradients.size() < 2) {
      moment.kind = random.Below(4) == 0 ? MomentKind::kBorrow : MomentKind::kGradient;
      if (moment.kind == MomentKind::kBorrow) borrowed.insert(moment.subject);
      gradients.push_back(moment.subject);
    } else if (dice <= 2 && !gradients.empty()) {
      moment.kind = MomentKind::kSubmit;
      moment.subject = gradients.front();
      borrowed.erase(moment.subject);
      gradients.erase(gradients.begin());
    } else {
      std::set<ChunkId> used{moment.subject, static_cast<ChunkId>(random.Below(chunks))};
      for (const ChunkId chunk : borrowed) used.erase(chunk);  // its block holds no parameters
      if (used.empty()) continue;
      moment.subject = 0;
      moment.chunks.assign(used.begin(), used.end());
    }
    schedule.moments.push_back(moment);
  }
  for (const ChunkId chunk : gradients)
    schedule.moments.push_back({MomentKind::kSubmit, chunk, {}});
  return schedule;
}

// A model's step: forward over all chunks, backward in reverse with a gradient phase for each,
// `micro_batches` times.
inline AccessSchedule TrainingSchedule(uint32_t chunks, uint32_t micro_batches) {
  AccessSchedule schedule;
  for (uint32_t batch = 0; batch < micro_batches; ++batch) {
    for (ChunkId c = 0; c < chunks; ++c) schedule.moments.push_back({MomentKind::kUse, 0, {c}});
    for (ChunkId c = chunks; c-- > 0;) {
      if (c + 1 < chunks) schedule.moments.push_back({MomentKind::kUse, 0, {c}});
      schedule.moments.push_back({MomentKind::kGradient, c, {}});
      schedule.moments.push_back({MomentKind::kSubmit, c, {}});
    }
  }
  return schedule;
}

}  // namespace tidepool::trainer
