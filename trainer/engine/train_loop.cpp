#include "trainer/engine/train_loop.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/point.h"
#include "base/random.h"
#include "base/units.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

namespace tidepool::trainer {
namespace {

// The scaler after the verdict of the step after which the run continues.
optim::LossScaler ScalerAt(const TrainTask& task) {
  if (task.start.version == 0 || !task.loss_scaling) return optim::LossScaler(task.scaler);
  optim::LossScaler scaler(
      task.scaler, {task.start.loss_scale, task.start.scaler_steps, task.scaler.hysteresis, 0});
  scaler.Update(!task.start.last_skipped);
  return scaler;
}

// One run's changing state; the steps below are its methods.
class Run {
 public:
  explicit Run(const TrainTask& task)
      : task_(task), scaler_(ScalerAt(task)), version_(task.start.version) {
    random_ = version_ > 0 ? task.start.random_state : SplitMix64(task.seed).Next();
    if (version_ > 0) task.batches->Seek(task.start.data_cursor);
  }
  Result<TrainSummary> All();

 private:
  Status Steps();
  Status Report(StepReport report);
  Status TellHeld(bool is_last);
  Status Step(uint64_t step);
  Status MicroBatches(StepReport* report);
  Status TakeLoss(StepReport* report);
  Status Seal(StepReport* report);
  Status EndStep(StepReport* report, client::Outcome* sealed);
  Status ReportUnreported();
  Status HeldOutLoss(StepReport* report);
  Result<bool> StopWanted();
  Status MeanOverRanks(double* value);
  bool EvaluationDue(uint64_t step) const {
    return task_.eval_every > 0 && (step % task_.eval_every == 0 || step == task_.steps);
  }
  Status TakeCounters(StepReport* report);
  Status SumTraffic(StepReport* report);

  const TrainTask& task_;
  optim::LossScaler scaler_;
  Version version_;
  uint64_t random_ = 0;  // changes with every step; saved in the step record
  CacheCounters before_{};
  TrainSummary summary_;
  std::optional<StepReport> held_;  // of the sealed step, until it is known to be safe or not
};

// Names the step in which the model met values that are not numbers.
Status InStep(const Status& ended, uint64_t step) {
  if (ended.id() != ErrorId::kNonFinite) return ended;
  return Status(ended.id(), ended.what() + ", in step " + std::to_string(step)).Why(ended.why());
}

double Seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

Status Run::MeanOverRanks(double* value) {
  TP_RETURN_IF_ERROR(task_.world->SumDoubles(value, 1));
  *value /= task_.columns;
  return {};
}

Status Run::MicroBatches(StepReport* report) {
  // A step's random numbers depend only on the step, so a repeated step sees the same ones.
  at::manual_seed(SplitMix64(random_ ^ task_.column).Next());
  // Gradients are summed over all micro-batches and columns; this factor makes the sum a mean,
  // times the loss scale.
  const double scale = task_.loss_scaling ? scaler_.scale() : 1;
  const double factor = scale / (static_cast<double>(task_.micro_batches) * task_.columns);
  std::vector<Batch> batches;
  for (uint32_t micro_batch = 0; micro_batch < task_.micro_batches; ++micro_batch) {
    TP_ASSIGN_OR_RETURN(Batch batch, task_.batches->Next());
    summary_.tokens += batch.sequences * batch.tokens * task_.columns;
    if (task_.whole_step) {
      batches.push_back(std::move(batch));
      continue;
    }

    const Status ran = task_.engine->RunMicroBatch(
        version_, micro_batch, [&] { return task_.loss(batch); }, factor);
    if (!ran.ok()) return InStep(ran, version_ + 1);
  }
  if (!task_.whole_step) return {};
  TP_ASSIGN_OR_RETURN(const StagedBytes bytes, task_.whole_step(version_, batches, factor));
  report->bytes_boundary = bytes.boundary;
  report->bytes_linked = bytes.linked;
  report->bytes_linked_theory = bytes.linked_theory;
  return {};
}

// Called once per step, when the device has finished it.
Status Run::TakeLoss(StepReport* report) {
  TP_ASSIGN_OR_RETURN(const std::vector<double> values, task_.engine->TakeLosses());
  for (const double value : values) report->loss += value / task_.micro_batches;
  return MeanOverRanks(&report->loss);
}

// Records the loss before the step can be sealed, so that a run that continues after a sealed step
// can report it.
Status Run::EndStep(StepReport* report, client::Outcome* sealed) {
  client::StepEnd end{.version = version_,
                      .learning_rate = static_cast<float>(report->learning_rate),
                      .loss_scale = static_cast<float>(report->loss_scale),
                      .data_cursor = task_.batches->position(),
                      .scaler_steps = scaler_.state().good_steps,
                      .random_state = SplitMix64(random_).Next()};

  const auto note = [&]() -> Status {
    TP_RETURN_IF_ERROR(TakeLoss(report));
    // The engine reads `end` after this.
    if (task_.world->rank() == 0)
      end.facts = {.loss = static_cast<float>(report->loss),
                   .tokens = report->tokens,
                   .cpus_shared = task_.cpus_shared != nullptr && task_.cpus_shared()};
    // Before the note of this step replaces that of the one before.
    TP_RETURN_IF_ERROR(TellHeld(false));
    return task_.reports != nullptr ? task_.reports->Note(*report) : Status();
  };

  TP_ASSIGN_OR_RETURN(*sealed, task_.engine->EndStep(end, note));
  version_ = sealed->version;
  random_ = end.random_state;
  TP_POINT("trainer.step_sealed");
  return {};
}

Status Run::Seal(StepReport* report) {
  report->loss_scale = task_.loss_scaling ? scaler_.scale() : 1;
  client::Outcome sealed;
  TP_RETURN_IF_ERROR(EndStep(report, &sealed));
  report->grad_norm = sealed.grad_norm;
  report->skipped = sealed.skipped;

  if (!task_.loss_scaling) return {};
  if (sealed.skipped && scaler_.at_minimum()) {
    return Status(ErrorId::kNonFinite,
                  "gradients overflow even at the smallest loss scale, at step " +
                      std::to_string(report->step));
  }

  scaler_.Update(!sealed.skipped);
  if (sealed.skipped) {
    ++summary_.steps_skipped;
    if (task_.reports != nullptr)
      LogWarn(
          "step skipped: a gradient overflowed",
          {{"step", report->step}, {"loss_scale", report->loss_scale}, {"next", scaler_.scale()}});
  }
  return {};
}

Status Run::HeldOutLoss(StepReport* report) {
  if (task_.held_out.empty()) return {};
  double sum = 0;
  for (const Batch& batch : task_.held_out) {
    Result<double> value = task_.engine->Evaluate(version_, [&] { return task_.loss(batch); });
    if (!value.ok()) return InStep(value.status(), version_);
    sum += *value;
  }
  sum /= static_cast<double>(task_.held_out.size());
  TP_RETURN_IF_ERROR(MeanOverRanks(&sum));

  report->held_out_loss = sum;
  if (!summary_.held_out_first) summary_.held_out_first = sum;
  summary_.held_out_last = sum;
  return {};
}

Status Run::TakeCounters(StepReport* report) {
  const CacheCounters now = task_.engine->cache().counters();
  report->hits = now.hits - before_.hits;
  report->ahead = now.ahead - before_.ahead;
  report->misses = now.misses - before_.misses;
  report->evictions = now.evictions - before_.evictions;
  report->memory_most = now.memory_most;
  report->evictions_unforeseen = now.unforeseen - before_.unforeseen;
  report->prefetches = now.prefetches - before_.prefetches;
  report->prefetches_late = now.late_prefetches - before_.late_prefetches;
  report->waited_seconds = Seconds(static_cast<int64_t>(now.wait_ns - before_.wait_ns));
  report->cpus_shared = task_.cpus_shared != nullptr && task_.cpus_shared();

  report->bytes_h2d = now.bytes_h2d - before_.bytes_h2d;
  report->bytes_d2h = now.bytes_d2h - before_.bytes_d2h;
  report->groups = Difference(now.traffic, before_.traffic);
  report->groups_theory = task_.engine->planned_traffic();
  // The ranks of one pipeline have different bytes; their sum is that of the column.
  if (task_.columns < task_.world->world()) TP_RETURN_IF_ERROR(SumTraffic(report));

  const GroupTraffic theory = SumOf(report->groups_theory);
  report->bytes_h2d_theory = theory.fetched;
  report->bytes_d2h_theory = theory.handed_in;
  return {};
}

// Bytes are integers below 2^53, so their sums are exact.
Status Run::SumTraffic(StepReport* report) {
  // If one rank has no plan yet, no rank reports theory.
  uint64_t without_plan = report->groups_theory.empty() ? 1 : 0;
  report->groups_theory.resize(report->groups.size());
  std::vector<uint64_t*> fields{&without_plan,         &report->bytes_h2d,
                                &report->bytes_d2h,    &report->bytes_boundary,
                                &report->bytes_linked, &report->bytes_linked_theory};
  for (std::vector<GroupTraffic>* groups : {&report->groups, &report->groups_theory}) {
    for (GroupTraffic& group : *groups) {
      for (uint64_t* field :
           {&group.fetched, &group.handed_in, &group.gathered, &group.scattered, &group.reduced})
        fields.push_back(field);
    }
  }

  std::vector<double> values;
  for (const uint64_t* field : fields) values.push_back(static_cast<double>(*field));
  TP_RETURN_IF_ERROR(task_.world->SumDoubles(values.data(), values.size()));
  for (size_t i = 0; i < fields.size(); ++i) *fields[i] = static_cast<uint64_t>(values[i]);
  if (without_plan > 0) report->groups_theory.clear();
  return {};
}

// A signal reaches the ranks at different steps; all stop together at the first step at which any
// rank wants to stop.
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
  if (task_.trace != nullptr) task_.trace->BeginStep(step);

  TP_RETURN_IF_ERROR(MicroBatches(&report));
  report.tokens = summary_.tokens - tokens_before;
  TP_RETURN_IF_ERROR(Seal(&report));
  report.seconds = Seconds(task_.clock->NowNs() - start);
  TP_RETURN_IF_ERROR(TakeCounters(&report));
  if (!std::isfinite(report.loss) && !report.skipped) {
    return Status(ErrorId::kNonFinite, "the loss is not finite at step " + std::to_string(step));
  }

  summary_.seconds += report.seconds;
  summary_.steps = step;
  const uint64_t done_here = step - task_.start.version;
  if (done_here == 1) summary_.loss_first = report.loss;
  summary_.loss_last = report.loss;
  report.eta_seconds =
      summary_.seconds / static_cast<double>(done_here) * static_cast<double>(task_.steps - step);

  if (EvaluationDue(step)) TP_RETURN_IF_ERROR(HeldOutLoss(&report));
  TP_RETURN_IF_ERROR(Report(std::move(report)));
  return task_.after_step ? task_.after_step(version_) : Status();
}

Status Run::Report(StepReport report) {
  if (task_.reports == nullptr) return {};
  if (!task_.safe) return task_.reports->Write(report);
  held_ = std::move(report);
  return {};
}

Status Run::TellHeld(bool is_last) {
  if (!held_) return {};
  StepReport report = *std::exchange(held_, {});
  report.durable = task_.safe(report.step, is_last);
  return task_.reports->Write(report);
}

// Writes the report of the last sealed step if its process died before writing it: from the
// recorded loss, and with the held-out loss, which the sealed weights still give.
Status Run::ReportUnreported() {
  double due = task_.reports != nullptr && task_.reports->unreported() ? 1 : 0;
  TP_RETURN_IF_ERROR(task_.world->SumDoubles(&due, 1));
  if (due == 0) return {};
  StepReport report = task_.reports != nullptr ? *task_.reports->unreported() : StepReport();
  report.steps = task_.steps;
  report.skipped = task_.start.last_skipped;
  if (EvaluationDue(version_)) TP_RETURN_IF_ERROR(HeldOutLoss(&report));
  return task_.reports != nullptr ? task_.reports->Write(report) : Status();
}

Status Run::Steps() {
  summary_.steps = version_;
  if (version_ > 0) {
    TP_RETURN_IF_ERROR(ReportUnreported());
  } else if (task_.eval_every > 0 && !task_.held_out.empty()) {
    StepReport untrained;
    untrained.steps = task_.steps;
    TP_RETURN_IF_ERROR(HeldOutLoss(&untrained));
    untrained.loss = *untrained.held_out_loss;
    if (task_.reports != nullptr) TP_RETURN_IF_ERROR(task_.reports->Write(untrained));
  }

  for (uint64_t step = version_ + 1; step <= task_.steps; ++step) {
    TP_ASSIGN_OR_RETURN(summary_.stopped, StopWanted());
    if (summary_.stopped) break;
    TP_RETURN_IF_ERROR(Step(step));
  }
  return {};
}

Result<TrainSummary> Run::All() {
  const Status ended = Steps();
  // The sealed step is reported, whatever ended the next one.
  const Status told = TellHeld(true);
  TP_RETURN_IF_ERROR(ended);
  TP_RETURN_IF_ERROR(told);

  if (task_.reports != nullptr) task_.reports->Finish();
  summary_.version = version_;
  return summary_;
}

}  // namespace

StartPoint StartPointOf(const client::Attachment& attachment) {
  if (!attachment.weights_ready) return {};
  return {.version = attachment.sealed_version,
          .data_cursor = attachment.data_cursor,
          .loss_scale = attachment.loss_scale,
          .scaler_steps = attachment.scaler_steps,
          .last_skipped = attachment.last_skipped,
          .random_state = attachment.random_state};
}

Result<TrainSummary> TrainLoop(const TrainTask& task) {
  return Run(task).All();
}

}  // namespace tidepool::trainer
