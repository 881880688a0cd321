// RunLimits: how far a run can go on this machine: the largest batch that fits beside its rCache,
// and the smallest rCache with which a step loses less than a fiftieth. What `trainer estimate`
// says of it.
//
// Any thread; torch-free; pure but for the profiles that it asks for. Activations grow with the
// sequences by the same bytes for each, which two profiles give and a third one confirms. What
// operators need beside them (scratch memory, gaps of an allocator) is a quarter more, as
// everywhere in this program (trainer/plan/search.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "base/text/json_writer.h"
#include "trainer/advice/rcache_choice.h"

namespace tidepool::trainer {

inline constexpr double kLossMost = 0.02;  // of a step

// What limits are found from.
struct LimitsTask {
  uint64_t batch_step = 1;  // sequences by which a rank's batch can grow
  uint64_t room_bytes = 0;  // of one rank, for what a step holds beside rCache and states
  std::string room_name;    // "host memory, of 2 ranks"
  bool on_host = true;      // the ranks compute on the CPUs
  // The run as it was asked for: its layout, order and optimizer.
  ChoiceTask choice;
  // The profile of a rank's micro-batch of so many sequences.
  std::function<Result<StepProfile>(uint64_t sequences)> profile;
};

struct RunLimits {
  uint64_t batch = 0, batch_bytes = 0;  // sequences, and bytes of their step; 0: not one fits
  uint64_t next_bytes = 0;              // of the next larger batch
  uint64_t room_bytes = 0;
  std::string room_name;
  uint64_t rcache_bytes = 0;  // with resident chunks
  double rcache_share = 0;    // of what would keep every chunk
  // What a step loses with it: of its time where the ranks compute on the host, else of the bytes
  // that it moves, as nobody has measured that device's arithmetic.
  double loss = 0;
  bool loss_is_time = true;
};

// Errors: those of the profiles.
Result<RunLimits> FindLimits(const LimitsTask& task);

// Two lines below those of the plan.
std::string DescribeLimits(const RunLimits& limits);
// Writes one object; the caller has written its key.
void WriteLimits(const RunLimits& limits, JsonWriter* json);

}  // namespace tidepool::trainer
