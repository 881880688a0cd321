#include "trainer/train_loop.h"

#include <cmath>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/units.h"

#include <ATen/core/Tensor.h>

namespace tidepool::trainer {
namespace {

// One run's changing state; the steps below are its methods.
class Run {
 public:
  explicit Run(const TrainTask& task) : task_(task), scaler_(optim::LossScalerSpec{}) {}
  Result<TrainSummary> All();

 private:
  Status Step(uint64_t step);
  Status MicroBatches(double* loss);
  Status Seal(StepReport* report);
  Status HeldOutLoss(StepReport* report);
  Result<bool> StopWanted();
  Status MeanOverRanks(double* value);
  void TakeCounters(StepReport* report);

  const TrainTask& task_;
  optim::LossScaler scaler_;
  Version version_ = 0;
  CacheCounters before_{};
  TrainSummary summary_;
};

double Seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

Status Run::MeanOverRanks(double* value) {
  TP_RETURN_IF_ERROR(task_.world->SumDoubles(value, 1));
  *value /= task_.world->world();
  return {};
}

Status Run::MicroBatches(double* loss) {
  // The gradients of all micro-batches and ranks are summed; this factor makes the sum a mean, times the loss scale.
  const double scale = task_.loss_scaling ? scaler_.scale() : 1;
  const double factor = scale / (static_cast<double>(task_.micro_batches) * task_.world->world());
  for (uint32_t micro_batch = 0; micro_batch < task_.micro_batches; ++micro_batch) {
    TP_ASSIGN_OR_RETURN(const Batch batch, task_.batches->Next());
    summary_.tokens += batch.sequences * batch.tokens * task_.world->world();
    TP_ASSIGN_OR_RETURN(const double value, task_.engine->TrainMicroBatch(
                                                version_, micro_batch, [&] { return task_.loss(batch); }, factor));
    *loss += value / task_.micro_batches;
  }
  return {};
}

Status Run::Seal(StepReport* report) {
  const double scale = task_.loss_scaling ? scaler_.scale() : 1;
  const client::StepEnd end{.version = version_,
                            .learning_rate = static_cast<float>(report->learning_rate),
                            .loss_scale = static_cast<float>(scale),
                            .data_cursor = task_.batches->position(),
                            .scaler_steps = scaler_.state().good_steps,
                            .random_state = 0};
  TP_ASSIGN_OR_RETURN(const client::Outcome sealed, task_.engine->EndStep(end));
  version_ = sealed.version;
  report->grad_norm = sealed.grad_norm;
  report->skipped = sealed.skipped;
  report->loss_scale = scale;
  if (!task_.loss_scaling) return {};
  if (sealed.skipped && scaler_.at_minimum()) {
    return Status(ErrorId::kNonFinite, "gradients overflow even at the smallest loss scale, at step " + std::to_string(report->step));
  }
  scaler_.Update(!sealed.skipped);
  if (sealed.skipped) {
    ++summary_.steps_skipped;
    if (task_.reports != nullptr)
      LogWarn("step skipped: a gradient overflowed", {{"step", report->step}, {"loss_scale", scale}, {"next", scaler_.scale()}});
  }
  return {};
}

Status Run::HeldOutLoss(StepReport* report) {
  if (task_.held_out.empty()) return {};
  double sum = 0;
  for (const Batch& batch : task_.held_out) {
    TP_ASSIGN_OR_RETURN(const double value, task_.engine->Evaluate(version_, [&] { return task_.loss(batch); }));
    sum += value;
  }
  sum /= static_cast<double>(task_.held_out.size());
  TP_RETURN_IF_ERROR(MeanOverRanks(&sum));
  report->held_out_loss = sum;
  if (!summary_.held_out_first) summary_.held_out_first = sum;
  summary_.held_out_last = sum;
  return {};
}

void Run::TakeCounters(StepReport* report) {
  const CacheCounters now = task_.engine->cache().counters();
  report->hits = now.hits - before_.hits;
  report->misses = now.misses - before_.misses;
  report->evictions = now.evictions - before_.evictions;
  report->prefetches = now.prefetches - before_.prefetches;
  report->prefetches_late = now.late_prefetches - before_.late_prefetches;
  report->waited_seconds = Seconds(static_cast<int64_t>(now.wait_ns - before_.wait_ns));
  report->bytes_h2d = now.bytes_h2d - before_.bytes_h2d;
  report->bytes_d2h = now.bytes_d2h - before_.bytes_d2h;
  if (const std::optional<StepTraffic>& theory = task_.engine->planned_traffic()) {
    report->bytes_h2d_theory = theory->bytes_h2d;
    report->bytes_d2h_theory = theory->bytes_d2h;
  }
}

// A signal reaches the ranks at different steps; they stop together at the first step that any of them wants to stop at.
Result<bool> Run::StopWanted() {
  double wanted = task_.stop_wanted != nullptr && task_.stop_wanted() ? 1 : 0;
  TP_RETURN_IF_ERROR(task_.world->SumDoubles(&wanted, 1));
  return wanted > 0;
}

Status Run::Step(uint64_t step) {
  StepReport report;
  report.step = step;
  report.steps = task_.steps;
  report.learning_rate = optim::LearningRateAt(task_.schedule, step);
  const int64_t start = task_.clock->NowNs();
  const uint64_t tokens_before = summary_.tokens;
  before_ = task_.engine->cache().counters();
  double loss = 0;
  TP_RETURN_IF_ERROR(MicroBatches(&loss));
  TP_RETURN_IF_ERROR(Seal(&report));
  report.seconds = Seconds(task_.clock->NowNs() - start);
  TakeCounters(&report);
  TP_RETURN_IF_ERROR(MeanOverRanks(&loss));
  if (!std::isfinite(loss) && !report.skipped) {
    return Status(ErrorId::kNonFinite, "the loss is not finite at step " + std::to_string(step));
  }
  report.loss = loss;
  report.tokens = summary_.tokens - tokens_before;
  summary_.seconds += report.seconds;
  summary_.steps = step;
  if (step == 1) summary_.loss_first = loss;
  summary_.loss_last = loss;
  report.eta_seconds = summary_.seconds / static_cast<double>(step) * static_cast<double>(task_.steps - step);
  const bool eval_due = task_.eval_every > 0 && (step % task_.eval_every == 0 || step == task_.steps);
  if (eval_due) TP_RETURN_IF_ERROR(HeldOutLoss(&report));
  return task_.reports != nullptr ? task_.reports->Write(report) : Status();
}

Result<TrainSummary> Run::All() {
  if (task_.eval_every > 0 && !task_.held_out.empty()) {
    StepReport untrained;
    untrained.steps = task_.steps;
    TP_RETURN_IF_ERROR(HeldOutLoss(&untrained));
    untrained.loss = *untrained.held_out_loss;
    if (task_.reports != nullptr) TP_RETURN_IF_ERROR(task_.reports->Write(untrained));
  }
  for (uint64_t step = 1; step <= task_.steps; ++step) {
    TP_ASSIGN_OR_RETURN(summary_.stopped, StopWanted());
    if (summary_.stopped) break;
    TP_RETURN_IF_ERROR(Step(step));
  }
  if (task_.reports != nullptr) task_.reports->EndLine();
  summary_.version = version_;
  return summary_;
}

}  // namespace

Result<TrainSummary> TrainLoop(const TrainTask& task) {
  return Run(task).All();
}

}  // namespace tidepool::trainer
