// TrainLoop: the steps of one run on one rank: batches in, losses and metrics out.
//
// One thread (the trainer's main thread). All ranks run it identically: every decision (skipped
// step, stop, loss scale) follows from values that are equal on all ranks.
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

// Where a run starts: with a new job, or after the last sealed step of a job at the server, from
// its step record.
struct StartPoint {
  // Sealed; the next step is version + 1, because skipped steps count too.
  Version version = 0;
  uint64_t data_cursor = 0;  // sequences read by all ranks together
  double loss_scale = 1;     // used in the sealed step, before its verdict
  uint32_t scaler_steps = 0;
  bool last_skipped = false;  // the verdict of that step
  uint64_t random_state = 0;
};
StartPoint StartPointOf(const client::Attachment& attachment);

// Traffic of a pipelined step on this rank, other than chunks: as in StepReport.
struct StagedBytes {
  uint64_t boundary = 0, linked = 0, linked_theory = 0;
};

// The inputs of a training loop.
struct TrainTask {
  TrainingEngine* engine = nullptr;
  Collective* world = nullptr;  // all ranks
  // Number of columns (ranks, or pipelines, with their own sequences), and this rank's index; other
  // ranks of a pipeline have no loss. The column seeds a rank's random numbers.
  uint32_t columns = 1, column = 0;
  BatchCursor* batches = nullptr;  // this rank's share of each micro-batch
  std::vector<Batch> held_out;     // this rank's share; may be empty
  BatchLoss loss;                  // mean over the batch's tokens
  // If set, runs all micro-batches of a step: engine->RunWhole for the gradients of loss x factor.
  // Null: runs `loss` for one micro-batch after another.
  std::function<Result<StagedBytes>(Version, std::span<const Batch>, double factor)> whole_step =
      nullptr;
  optim::ScheduleSpec schedule;
  StartPoint start;
  uint64_t seed = 1;          // for LibTorch's random numbers, reseeded in every step
  bool loss_scaling = false;  // fp16
  optim::LossScalerSpec scaler;
  uint32_t micro_batches = 1;
  uint64_t steps = 0, eval_every = 0;
  ReportWriter* reports = nullptr;  // rank 0 only, else null
  // Whether a power cut leaves this sealed step; may wait if it is the last one. If set, a step is
  // reported when the next one is about to end, or no further one comes. Null: unknown.
  std::function<bool(Version, bool is_last)> safe = nullptr;
  bool (*stop_wanted)() = nullptr;  // checked between steps; null: never
  // Called with each sealed version; an error ends the loop.
  std::function<Status(Version)> after_step = nullptr;
  // Whether other processes want the CPUs at this moment; null: unknown.
  std::function<bool()> cpus_shared;
  const Clock* clock = nullptr;
  StepTrace* trace = nullptr;  // notified at each step's start; null: no trace
};

// Result of the loop.
struct TrainSummary {
  uint64_t steps = 0;                    // sealed, including those of earlier processes
  Version version = 0;                   // sealed
  double loss_first = 0, loss_last = 0;  // training loss
  std::optional<double> held_out_first, held_out_last;
  double seconds = 0;  // total of training steps
  uint64_t tokens = 0;
  uint64_t steps_skipped = 0;
  bool stopped = false;  // by a signal
};

// Errors: those latched by the engine, kNonFinite, kCollectiveFailed, kFileWriteFailed.
Result<TrainSummary> TrainLoop(const TrainTask& task);

}  // namespace tidepool::trainer
