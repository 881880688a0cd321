// TrainLoop: the steps of one run on one rank: batches in, losses and figures out.
//
// One thread (the trainer's main thread). All ranks run it alike: every decision (skipped step, stop, loss scale) follows from values that
// are equal on all ranks.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "trainer/comm/collective.h"
#include "trainer/data/batch_cursor.h"
#include "trainer/engine.h"
#include "trainer/step_report.h"

namespace tidepool::trainer {

using BatchLoss = std::function<at::Tensor(const Batch&)>;

struct TrainTask {
  TrainingEngine* engine = nullptr;
  Collective* world = nullptr;     // all ranks
  BatchCursor* batches = nullptr;  // this rank's share of each micro-batch
  std::vector<Batch> held_out;     // this rank's share of the held-out batches; may be empty
  BatchLoss loss;                  // mean over the batch's tokens
  optim::ScheduleSpec schedule;
  bool loss_scaling = false;  // fp16
  uint32_t micro_batches = 1;
  uint64_t steps = 0, eval_every = 0;
  ReportWriter* reports = nullptr;  // rank 0 only, else null
  bool (*stop_wanted)() = nullptr;  // asked between steps; null: never
  const Clock* clock = nullptr;
};

struct TrainSummary {
  uint64_t steps = 0;                    // done
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
