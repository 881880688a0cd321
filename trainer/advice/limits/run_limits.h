// RunLimits: the limits of a run on this machine, for `trainer estimate`: the largest batch that
// fits beside its rCache, and the smallest rCache that costs a step less than 2 %.
//
// Any thread; torch-free; pure except for the caller's profiles. Activations grow by the same bytes
// per sequence: two profiles give the line, and a third confirms the batch. Activations count for a
// quarter more, for scratch memory and gaps of the allocator, as in trainer/plan/search.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "base/text/json_writer.h"
#include "trainer/advice/rcache_choice.h"

namespace tidepool::trainer {

inline constexpr double kLossMost = 0.02;  // of a step

// The run, and the room of its ranks.
struct LimitsTask {
  uint64_t batch_step = 1;  // step of a rank's batch, in sequences
  uint64_t room_bytes = 0;  // one rank's memory for a step, without rCache and states
  std::string room_name;    // "host memory, for each rank"
  bool on_host = true;      // the ranks compute on the CPUs
  // The run as requested: its layout, order and optimizer.
  ChoiceTask choice;
  // Returns the profile of a rank's micro-batch of `sequences` sequences.
  std::function<Result<StepProfile>(uint64_t sequences)> profile;
};

struct RunLimits {
  uint64_t batch = 0, batch_bytes = 0;  // in sequences; bytes of its step; 0: none fits
  uint64_t next_bytes = 0;              // of the next larger batch
  uint64_t room_bytes = 0;
  std::string room_name;
  uint64_t rcache_bytes = 0;  // with resident chunks
  double rcache_share = 0;    // of the smallest rCache from which no chunk is fetched again
  // What a step loses with that rCache: a share of its time if the ranks compute on the host, else
  // additional bytes as a share of the bytes moved, as the device's arithmetic is not measured.
  double loss = 0;
  bool loss_is_time = true;
};

// Finds the limits of a run. Errors: those of the profiles.
Result<RunLimits> FindLimits(const LimitsTask& task);

// Two lines, printed below the plan.
std::string DescribeLimits(const RunLimits& limits);
// Writes one object; the caller has already written its key.
void WriteLimits(const RunLimits& limits, JsonWriter* json);

}  // namespace tidepool::trainer
