#include "trainer/plan/pipeline/stage_partition.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/plan/pipeline/stage_label.h"
#include "trainer/plan/pipeline/stage_times.h"

namespace tidepool::trainer {
namespace {

// The most labels kept per layer, by pass.
constexpr std::array<size_t, 3> kWidths{64, 1024, std::numeric_limits<size_t>::max()};
// Each label is compared with this many kept ones: dropping fewer is always correct.
constexpr size_t kCompared = 512;

Status DoesNotFit(const StageTable& table) {
  const PipelineTask& task = table.task();
  uint32_t layer = 0;
  while (layer + 1 < table.layers() && table.At(layer, layer + 1).fits) ++layer;
  const Stage& stage = table.At(layer, layer + 1);

  return Status(ErrorId::kDeviceMemoryShort,
                "layer " + std::to_string(layer + 1) + " of " + std::to_string(table.layers()) +
                    " needs " + FormatBytes(std::max(stage.forward_bytes, stage.backward_bytes)) +
                    " of a GPU, " + FormatBytes(task.gpu_bytes) + " can be used")
      .Where("stages of the pipeline")
      .Why(
          "a stage has at least one layer: its weights, the sums of its gradients, and what "
          "operators take")
      .Fix("take a smaller --batch, or GPUs with more memory");
}

class PartitionSearch {
 public:
  PartitionSearch(const StageTable& table, const PartitionLimits& limits)
      : table_(table), limits_(limits), rules_(table, limits.stages) {}

  Partition Run() {
    for (const size_t width : kWidths) {
      RunPass(width);
      best_.bound_ns = std::max(best_.bound_ns, std::min(best_.step_ns, dropped_bound_));
      if (best_.proven() || IsOver()) break;
    }
    return best_;
  }

  bool found() const { return !best_.ends.empty(); }

 private:
  // The limit applies once a partition has been found.
  bool IsOver() const { return found() && best_.stages_tried >= limits_.stages_tried_max; }

  // Extends all labels layer by layer, keeping at most `width` per layer.
  void RunPass(size_t width) {
    labels_.assign(1, rules_.Root());
    at_.assign(table_.layers(), {});
    at_[0] = {0};
    dropped_bound_ = std::numeric_limits<int64_t>::max();
    for (uint32_t layer = 0; layer < table_.layers(); ++layer) {
      for (const int32_t label : Kept(layer, width)) Branch(label);
      // Only the indices go: labels without successors stay, to trace back the best partition.
      at_[layer].clear();
    }
  }

  // The labels of a layer that may lead to a better partition, most promising first.
  std::vector<int32_t> Kept(uint32_t layer, size_t width) {
    std::vector<int32_t>& here = at_[layer];
    std::sort(here.begin(), here.end(), [&](int32_t a, int32_t b) {
      return std::pair(labels_[a].bound_ns, a) < std::pair(labels_[b].bound_ns, b);
    });

    std::vector<int32_t> kept;
    for (const int32_t candidate : here) {
      const StageLabel& label = labels_[candidate];
      if (label.bound_ns >= best_.step_ns) break;
      if (kept.size() == width || IsOver()) {
        dropped_bound_ = std::min(dropped_bound_, label.bound_ns);
        break;
      }

      const auto compared = kept.begin() + static_cast<ptrdiff_t>(std::min(kept.size(), kCompared));
      const bool useless = std::any_of(kept.begin(), compared, [&](int32_t other) {
        return rules_.IsNeverWorse(labels_[other], label);
      });
      if (!useless) kept.push_back(candidate);
    }
    return kept;
  }

  void Branch(int32_t from) {
    if (IsOver()) {
      dropped_bound_ = std::min(dropped_bound_, labels_[from].bound_ns);
      return;
    }

    const uint32_t first = labels_[from].layer;
    for (uint32_t behind = first + 1; behind <= table_.layers(); ++behind) {
      const Stage& stage = table_.At(first, behind);
      if (!stage.fits) continue;  // a longer stage that sends less may fit
      if (!MayEnd(labels_[from], behind)) continue;
      StageLabel next = rules_.With(labels_[from], stage);
      ++best_.stages_tried;

      next.parent = from;
      next.bound_ns = rules_.BoundOf(next);
      if (next.bound_ns >= best_.step_ns) continue;

      if (behind == table_.layers()) {
        Take(next);
      } else {
        at_[behind].push_back(static_cast<int32_t>(labels_.size()));
        labels_.push_back(std::move(next));
      }
    }
  }

  // Whether a stage may end there: with a given number of stages, each needs at least one layer.
  bool MayEnd(const StageLabel& label, uint32_t behind) const {
    if (limits_.stages == 0) return true;
    const uint32_t left = limits_.stages - label.stages - 1, layers = table_.layers() - behind;
    return left == 0 ? layers == 0
                     : layers >= left && layers <= uint64_t{left} * table_.layers_max();
  }

  void Take(const StageLabel& whole) {
    best_.step_ns = whole.bound_ns;
    best_.ends.assign(1, whole.layer);
    for (int32_t label = whole.parent; label > 0; label = labels_[label].parent)
      best_.ends.push_back(labels_[label].layer);
    std::reverse(best_.ends.begin(), best_.ends.end());
  }

  const StageTable& table_;
  const PartitionLimits limits_;
  const LabelRules rules_;
  Partition best_{.ends = {}, .step_ns = std::numeric_limits<int64_t>::max()};
  // State of the current pass.
  std::vector<StageLabel> labels_;
  std::vector<std::vector<int32_t>> at_;  // by layer
  int64_t dropped_bound_ = 0;             // least bound among labels dropped for lack of width
};

Partition Given(const StageTable& table, std::vector<uint32_t> ends) {
  Partition partition;
  partition.step_ns = TimesOf(table.task(), table.StagesOf(ends)).step_ns;
  partition.ends = std::move(ends);
  return partition;
}

}  // namespace

Result<Partition> FindPartition(const StageTable& table, const PartitionLimits& limits) {
  if (limits.stages > table.layers()) {
    return Status(ErrorId::kUsageError,
                  Counted(limits.stages, "stage") + " of " + Counted(table.layers(), "layer"))
        .Where("stages of the pipeline")
        .Why("a stage has at least one layer")
        .Fix("give at most " + Counted(table.layers(), "stage") + ", or auto");
  }
  if (table.layers_max() == 0) return DoesNotFit(table);

  PartitionSearch search(table, limits);
  Partition best = search.Run();
  if (search.found()) return best;

  TP_ASSIGN_OR_RETURN(const Partition least, MaximumStages(table));
  return Status(ErrorId::kDeviceMemoryShort, std::to_string(limits.stages) +
                                                 " stages do not fit into " +
                                                 FormatBytes(table.task().gpu_bytes) + " a GPU")
      .Where("stages of the pipeline")
      .Why("the fewest stages that fit are " + std::to_string(least.ends.size()))
      .Fix("give at least " + Counted(least.ends.size(), "stage") + ", or auto");
}

Result<Partition> MaximumStages(const StageTable& table) {
  if (table.layers_max() == 0) return DoesNotFit(table);
  std::vector<uint32_t> ends;
  for (uint32_t first = 0; first < table.layers(); first = ends.back()) {
    uint32_t behind = table.layers();
    while (!table.At(first, behind).fits) --behind;
    ends.push_back(behind);
  }
  return Given(table, std::move(ends));
}

Result<Partition> MinimumStages(const StageTable& table) {
  if (table.layers_max() == 0) return DoesNotFit(table);
  std::vector<uint32_t> ends;
  for (uint32_t behind = 1; behind <= table.layers(); ++behind) ends.push_back(behind);
  return Given(table, std::move(ends));
}

}  // namespace tidepool::trainer
