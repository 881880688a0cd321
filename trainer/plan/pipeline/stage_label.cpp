#include "trainer/plan/pipeline/stage_label.h"

#include <algorithm>
#include <limits>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::min() / 4;
constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 4;

// Offsets in a label, after the M entries of its last stage.
constexpr size_t kStart = 0, kEnd = 1, kEndLessSpare = 2, kHeadsOfStage = 3;
constexpr size_t kTail = 0, kTailWithUpload = 1, kTailsOfStage = 2;

// The last N stages, without the oldest and with room for a new one; `from`: after the M entries.
void Shift(const std::vector<int64_t>& of, size_t from, size_t each, std::vector<int64_t>* to) {
  to->resize(of.size());
  std::copy(of.begin() + static_cast<ptrdiff_t>(from + each), of.end(),
            to->begin() + static_cast<ptrdiff_t>(from));
}

}  // namespace

LabelRules::LabelRules(const StageTable& table, uint32_t stages)
    : table_(table),
      stages_(stages),
      gpus_(table.task().gpus),
      micro_batches_(table.task().micro_batches) {
  const PipelineTask& task = table.task();
  gpu_ns_ = CopyNs(task.gpu_bytes, task.bytes_per_ns);
  rest_.resize(table.layers() + 1);
  least_forward_ = least_backward_ = kForever;

  for (uint32_t layer = table.layers(); layer-- > 0;) {
    const PipelineLayer& cost = task.layers[layer];
    const bool last = layer + 1 == table.layers();
    Rest& rest = rest_[layer] = rest_[layer + 1];
    rest.forward += cost.forward_ns;
    rest.backward += cost.backward_ns;
    rest.weights += CopyNs(cost.weight_bytes, task.bytes_per_ns);

    rest.longest_forward = std::max(rest.longest_forward, cost.forward_ns);
    rest.longest_backward = std::max(rest.longest_backward, cost.backward_ns);
    if (!last) {
      const int64_t copy = CopyNs(cost.output_bytes, task.bytes_per_ns);
      rest.least_copy = layer + 2 == table.layers() ? copy : std::min(rest.least_copy, copy);
    }
    least_forward_ = std::min(least_forward_, cost.forward_ns);
    least_backward_ = std::min(least_backward_, cost.backward_ns);
  }
}

StageLabel LabelRules::Root() const {
  StageLabel root;
  root.heads.assign(static_cast<size_t>(micro_batches_ + gpus_ * 3), 0);
  root.tails.assign(static_cast<size_t>(micro_batches_ + gpus_ * 2), kNever);
  const auto m = static_cast<size_t>(micro_batches_);
  std::fill_n(root.tails.begin(), m, 0);
  for (size_t k = 0; k < static_cast<size_t>(gpus_); ++k)
    root.heads[m + k * kHeadsOfStage + kEndLessSpare] = -gpu_ns_;
  return root;
}

StageLabel LabelRules::With(const StageLabel& label, const Stage& stage) const {
  const auto m = static_cast<size_t>(micro_batches_);
  StageLabel next;
  next.layer = stage.behind;
  next.stages = label.stages + 1;
  Shift(label.heads, m, kHeadsOfStage, &next.heads);
  Shift(label.tails, m, kTailsOfStage, &next.tails);

  // Forward: (8) to (10) with the best P_j, as in trainer/plan/pipeline/stage_times.h.
  const int64_t* before = &label.heads[m];
  int64_t free = std::max(
      {before[kStart] + stage.weight_ns, before[kEnd], before[kEndLessSpare] + stage.weight_ns});
  int64_t start = 0;

  for (size_t i = 0; i < m; ++i) {
    const int64_t begin = std::max(free, label.heads[i] + stage.input_ns);
    if (i == 0) start = begin;
    next.heads[i] = free = begin + stage.forward_ns;
  }
  int64_t* newest = &next.heads[next.heads.size() - kHeadsOfStage];
  newest[kStart] = start;
  newest[kEnd] = free;
  newest[kEndLessSpare] = free - stage.forward_spare_ns;

  // Backward, from the end: the path after the last micro-batch, then after each earlier one.
  const int64_t* above = &label.tails[m];
  int64_t tail =
      std::max({int64_t{0}, above[kTail], above[kTailWithUpload] - stage.backward_spare_ns});

  for (size_t i = m; i-- > 0;) {
    tail = std::max(tail, label.tails[i] + stage.input_ns) + stage.backward_ns;
    if (i == 0 && !TP_PLANTED("pipeline.upload_not_counted"))
      tail = std::max(tail, above[kTailWithUpload]);
    next.tails[i] = tail;
  }
  int64_t* last = &next.tails[next.tails.size() - kTailsOfStage];
  last[kTail] = tail;
  last[kTailWithUpload] = tail + stage.weight_ns + stage.input_ns;
  return next;
}

bool LabelRules::IsNeverWorse(const StageLabel& label, const StageLabel& than) const {
  if (stages_ != 0 && label.stages != than.stages) return false;
  int64_t later = kNever, longer = kNever;
  for (size_t i = 0; i < label.heads.size(); ++i)
    later = std::max(later, label.heads[i] - than.heads[i]);
  for (size_t i = 0; i < label.tails.size(); ++i) {
    longer = std::max(longer, label.tails[i] - than.tails[i]);
    if (later + longer > 0 && !TP_PLANTED("pipeline.drops_the_better")) return false;
  }
  return true;
}

LabelRules::Ends LabelRules::EndsOf(const StageLabel& label) const {
  const auto m = static_cast<size_t>(micro_batches_);
  const Rest& rest = rest_[label.layer];
  const Stage& next = table_.At(label.layer, label.layer + 1);
  Ends ends;

  // Micro-batch i passes all layers; earlier or later ones wait for the longest.
  for (size_t i = 0; i < m; ++i) {
    const auto others = static_cast<int64_t>(i);
    ends.head = std::max(ends.head, label.heads[i] + next.input_ns + rest.forward +
                                        (micro_batches_ - 1 - others) * rest.longest_forward);
    ends.tail = std::max(
        ends.tail, label.tails[i] + next.input_ns + rest.backward + others * rest.longest_backward);
  }

  const int64_t* before = &label.heads[m];
  ends.first_head = std::max({label.heads[0] + next.input_ns, before[kStart] + next.weight_ns,
                              before[kEnd], before[kEndLessSpare] + next.weight_ns});
  const int64_t* above = &label.tails[m];
  ends.first_tail = std::max({label.tails[m - 1] + next.input_ns, above[kTail],
                              above[kTailWithUpload] - gpu_ns_, int64_t{0}});

  // N GPUs share the rest; none starts on it before its last stage has ended.
  int64_t gpu_ends = 0;
  for (size_t k = 0; k < static_cast<size_t>(gpus_); ++k) {
    gpu_ends += before[k * kHeadsOfStage + kEnd];
    ends.starts += before[k * kHeadsOfStage + kStart];
    ends.tails += std::max(int64_t{0}, above[k * kTailsOfStage + kTail]);
  }
  ends.head = std::max(ends.head, (gpu_ends + micro_batches_ * rest.forward) / gpus_);
  ends.tail = std::max(ends.tail, (ends.tails + micro_batches_ * rest.backward) / gpus_);
  return ends;
}

// Minimum over the number of remaining stages: few stages are long, many send many tensors.
int64_t LabelRules::BoundByCount(const StageLabel& label, const Ends& ends) const {
  const Rest& rest = rest_[label.layer];
  const uint32_t layers = table_.layers() - label.layer;
  const uint32_t least = stages_ != 0 ? stages_ - label.stages
                                      : (layers + table_.layers_max() - 1) / table_.layers_max();
  const uint32_t most = stages_ != 0 ? least : layers;

  int64_t bound = kForever;
  for (uint32_t count = least; count <= most; ++count) {
    const int64_t copies = (count - 1) * rest.least_copy, others = micro_batches_ - 1;
    const int64_t head = ends.first_head + rest.forward + copies +
                         others * std::max(rest.longest_forward, rest.forward / count);
    const int64_t tail = ends.first_tail + rest.backward + copies +
                         others * std::max(rest.longest_backward, rest.backward / count);
    bound = std::min(bound, std::max(ends.head, head) + std::max(ends.tail, tail));
  }
  return bound;
}

// Minimum over the number of layers in the last N stages, whose weights are not uploaded for
// backward: few layers leave many uploads, many layers make long stages.
int64_t LabelRules::BoundByLast(const StageLabel& label, const Ends& ends) const {
  const Rest& rest = rest_[label.layer];
  const bool all_have_one = label.stages >= gpus_;
  const int64_t uploads = all_have_one ? UploadsOf(label) : 0;
  const auto last_most = static_cast<uint32_t>(
      std::min<int64_t>(table_.layers(), gpus_ * int64_t{table_.layers_max()}));

  int64_t bound = kForever;
  for (uint32_t last = 1; last <= last_most; ++last) {
    const uint32_t from = table_.layers() - last;
    const Rest& resident = rest_[std::max(label.layer, from)];
    const int64_t others = micro_batches_ - 1;

    // One of N stages takes at least the mean of their times, and each GPU uploads its own.
    int64_t head = ends.first_head + rest.forward +
                   others * std::max(rest.longest_forward, resident.forward / gpus_);
    head = std::max(head, (ends.starts + rest.weights + micro_batches_ * resident.forward +
                           Stagger(label, least_forward_)) /
                              gpus_);

    int64_t tail = ends.first_tail + rest.backward +
                   others * std::max(rest.longest_backward, resident.backward / gpus_);
    if (all_have_one && from >= label.layer) {
      tail = std::max(tail, (ends.tails + uploads + rest.weights - resident.weights +
                             Stagger(label, least_backward_)) /
                                gpus_);
    }
    bound = std::min(bound, std::max(ends.head, head) + std::max(ends.tail, tail));
  }
  return bound;
}

int64_t LabelRules::Stagger(const StageLabel& label, int64_t least) const {
  return label.stages >= gpus_ ? gpus_ * (gpus_ - 1) / 2 * least : 0;
}

int64_t LabelRules::UploadsOf(const StageLabel& label) const {
  int64_t uploads = 0;
  for (auto i = static_cast<size_t>(micro_batches_); i < label.tails.size(); i += kTailsOfStage)
    uploads += label.tails[i + kTailWithUpload] - label.tails[i + kTail];
  return uploads;
}

int64_t LabelRules::BoundOf(const StageLabel& label) const {
  if (label.layer == table_.layers())
    return label.heads[static_cast<size_t>(micro_batches_) - 1] + label.tails[0];
  const Ends ends = EndsOf(label);
  return std::max(BoundByCount(label, ends), BoundByLast(label, ends));
}

}  // namespace tidepool::trainer
