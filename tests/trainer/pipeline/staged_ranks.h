// StagedRanks: a small model trained with or without stages by ranks that are threads of this
// process, beside a memory server; and what came of it.
//
// One thread calls; a failure is one of the calling test.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "trainer/data/batch_cursor.h"
#include "trainer/engine/train_loop.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/plan/access_schedule.h"
#include "trainer/plan/replay.h"
#include "trainer/plan/traffic.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

inline constexpr uint64_t kSteps = 3, kSequences = 2, kTokens = 8;

// Which model: GPT-2's form, or Llama's with a tied head or one of its own.
enum class Form : uint8_t { kGpt2, kTiedLlama, kLlama };

struct Combination {
  uint32_t stages, micro_batches;
  const char* dtype;
  bool clips = true, recomputes = false;
  // Blocks of the rCache: "25%" gives what two stages need; 0: exactly one stage.
  bool tight = false;
  uint32_t ranks = 1;  // of a column
  uint32_t columns = 1;
  Form form = Form::kGpt2;
  friend std::ostream& operator<<(std::ostream& out, const Combination& c) {
    return out << c.stages << " stages, " << c.micro_batches << " micro-batches, " << c.dtype
               << (c.clips ? ", clipped" : "") << (c.recomputes ? ", recomputed" : "")
               << (c.tight ? ", one stage fits" : "") << ", ranks: " << c.ranks
               << ", columns: " << c.columns << ", form " << static_cast<int>(c.form);
  }
};

struct Outcomes {
  std::vector<double> losses, held_out, norms;
  std::vector<StepTraffic> moved;  // by step
  std::vector<GroupTraffic> planned;
  std::map<std::string, std::vector<float>> weights;
  RunPlan plan;
  AccessSchedule order;         // of a step
  uint64_t chunks_fetched = 0;  // in the last step
  StagedBytes bytes;            // likewise
};

// 8 layers.
GptShape Shape(Form form = Form::kGpt2);
RunOptions OptionsOf(const Combination& c);
// Stages as equal as can be; the first ones are larger. Ranks of a column take them in turn, the
// last rank first, so that an order that is not the ranks' own is tried.
void Cut(uint32_t stages, uint32_t ranks, RunOptions* options);
// The same with stages.
RunOptions Staged(const Combination& c);
// Each column has sequences of its own.
std::vector<Batch> BatchesOf(uint64_t step, uint32_t micro_batches, uint32_t column = 0);

// By rank.
std::vector<Outcomes> TrainRanks(const RunOptions& options, uint32_t ranks,
                                 const GptShape& shape = Shape());
Outcomes Train(const RunOptions& options, const GptShape& shape = Shape());
// What the ranks of a pipeline did, as one: the last stage's rank has the losses, and rank 0 has
// saved the weights.
Outcomes AsOne(const std::vector<Outcomes>& ranks);

// Losses, held-out losses, norms and weights.
void ExpectSameBits(const Outcomes& is, const Outcomes& should);

}  // namespace tidepool::trainer
