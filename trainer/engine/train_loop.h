// TrainLoop: the steps of one run on one rank: batches in, losses and figures out.
//
// One thread (the trainer's main thread). All ranks run it alike: every decision (skipped step,
// stop, loss scale) follows from values that are equal on all ranks.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "trainer/comm/collective.h"
#include "trainer/data/batch_cursor.h"
#include "trainer/engine/engine.h"
#include "trainer/output/step_report.h"

namespace tidepool::trainer {

using BatchLoss = std::function<at::Tensor(const Batch&)>;

// Where a run begins: at a new job, or behind the last sealed step of a job that the server holds,
// as its step record tells.
struct StartPoint {
  // Sealed; the next step's number is version + 1, because skipped steps count too.
  Version version = 0;
  uint64_t data_cursor = 0;  // sequences that all ranks have read
  double loss_scale = 1;     // that the sealed step was done with, before its verdict
  uint32_t scaler_steps = 0;
  bool last_skipped = false;  // the verdict
  uint64_t random_state = 0;
};
StartPoint StartPointOf(const client::Attachment& attachment);

// What a step that goes stage by stage moved here beside chunks: as StepReport has it.
struct StagedBytes {
  uint64_t boundary = 0, linked = 0, linked_theory = 0;
};

// What a run trains, and by what.
struct TrainTask {
  TrainingEngine* engine = nullptr;
  Collective* world = nullptr;  // all ranks
  // Ranks that train sequences of their own; the others help these, and have no loss. A random
  // number of a rank follows from its column.
  uint32_t columns = 1, column = 0;
  BatchCursor* batches = nullptr;  // this rank's share of each micro-batch
  std::vector<Batch> held_out;     // this rank's share of the held-out batches; may be empty
  BatchLoss loss;                  // mean over the batch's tokens
  // Where given, runs all micro-batches of a step itself: engine->RunWhole for the gradients of
  // loss x the factor. Null: one micro-batch after the other, by `loss`.
  std::function<Result<StagedBytes>(Version, std::span<const Batch>, double factor)> whole_step =
      nullptr;
  optim::ScheduleSpec schedule;
  StartPoint start;
  uint64_t seed = 1;          // of LibTorch's random numbers, which are seeded anew in every step
  bool loss_scaling = false;  // fp16
  optim::LossScalerSpec scaler;
  uint32_t micro_batches = 1;
  uint64_t steps = 0, eval_every = 0;
  ReportWriter* reports = nullptr;  // rank 0 only, else null
  bool (*stop_wanted)() = nullptr;  // asked between steps; null: never
  // Told of each sealed version; an error ends the loop.
  std::function<Status(Version)> after_step = nullptr;
  // Whether others want the CPUs at this moment; null: not known.
  std::function<bool()> cpus_shared;
  const Clock* clock = nullptr;
  StepTrace* trace = nullptr;  // told of each step's begin; null: nothing is traced
};

// What came of it.
struct TrainSummary {
  uint64_t steps = 0;                    // sealed, those of earlier processes included
  Version version = 0;                   // sealed
  double loss_first = 0, loss_last = 0;  // training loss
  std::optional<double> held_out_first, held_out_last;
  double seconds = 0;  // of training steps
  uint64_t tokens = 0;
  uint64_t steps_skipped = 0;
  bool stopped = false;  // by a signal
};

// Errors: what the engine latched, kNonFinite, kCollectiveFailed, kFileWriteFailed.
Result<TrainSummary> TrainLoop(const TrainTask& task);

}  // namespace tidepool::trainer
