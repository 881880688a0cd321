#include "tests/trainer/plan/pipeline/schedule_checker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace tidepool::trainer {
namespace {

struct Interval {
  int64_t start = 0, end = 0;
};
// Backward?, stage, micro-batch.
using Work = std::tuple<bool, uint32_t, uint32_t>;
// Kind, backward?, stage, layer or micro-batch.
using Transfer = std::tuple<CopyKind, bool, uint32_t, uint32_t>;

class Checker {
 public:
  Checker(const ScheduleTask& task, const PipelineSchedule& schedule)
      : task_(task),
        schedule_(schedule),
        stages_(static_cast<uint32_t>(task.stages.size())),
        gpus_(static_cast<uint32_t>(task.order.size())) {}

  std::string Check() {
    for (const auto part : {&Checker::Computes, &Checker::Copies, &Checker::Links, &Checker::Order,
                            &Checker::Needs, &Checker::Memory, &Checker::End}) {
      std::string wrong = (this->*part)();
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

  uint64_t Peak() {
    Computes();
    Copies();
    uint64_t peak = 0;
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) peak = std::max(peak, PeakOf(gpu));
    return peak;
  }

 private:
  uint32_t GpuOf(uint32_t stage) const { return task_.order[stage % gpus_]; }
  uint32_t ComplexOf(uint32_t gpu) const {
    uint32_t complex = 0, behind = task_.topology.complexes[0].gpus;
    while (gpu >= behind) behind += task_.topology.complexes[++complex].gpus;
    return complex;
  }
  static std::string Text(const char* what, uint32_t stage, uint32_t item) {
    return std::string(what) + " of stage " + std::to_string(stage) + ", " + std::to_string(item);
  }

  // All micro-batches of all stages, once, on the stage's GPU, for the right time.
  std::string Computes() {
    for (const ComputeSpan& span : schedule_.computes) {
      if (span.stage >= stages_ || span.micro_batch >= task_.micro_batches)
        return Text("compute unknown", span.stage, span.micro_batch);
      const Stage& stage = task_.stages[span.stage];
      const int64_t takes = span.backward ? stage.backward_ns : stage.forward_ns;
      if (span.start_ns < 0 || span.end_ns - span.start_ns != takes)
        return Text("compute time", span.stage, span.micro_batch);
      if (span.gpu != GpuOf(span.stage)) return Text("compute gpu", span.stage, span.micro_batch);
      if (!work_
               .insert(
                   {{span.backward, span.stage, span.micro_batch}, {span.start_ns, span.end_ns}})
               .second)
        return Text("compute twice", span.stage, span.micro_batch);
    }
    const bool all = work_.size() == size_t{2} * stages_ * task_.micro_batches;
    return all ? std::string() : std::string("compute missing");
  }

  // The transfers that there must be, with their bytes.
  std::map<Transfer, uint64_t> Expected() const {
    std::map<Transfer, uint64_t> all;
    for (uint32_t j = 0; j < stages_; ++j) {
      const Stage& stage = task_.stages[j];
      for (uint32_t layer = stage.first; layer < stage.behind; ++layer) {
        const PipelineLayer& cost = task_.layers[layer];
        all[{CopyKind::kWeights, false, j, layer}] = cost.weight_bytes;
        if (j + gpus_ < stages_) all[{CopyKind::kWeights, true, j, layer}] = cost.weight_bytes;
        all[{CopyKind::kSums, true, j, layer}] = cost.gradient_bytes;
      }

      for (uint32_t m = 0; m < task_.micro_batches; ++m) {
        if (j > 0) {
          const uint64_t in = task_.layers[stage.first - 1].output_bytes;
          all[{CopyKind::kInput, false, j, m}] = in;
          all[{CopyKind::kSaved, true, j, m}] = in;
          all[{CopyKind::kOutput, true, j, m}] = in;
        }
        if (j + 1 < stages_) {
          const uint64_t out = task_.layers[stage.behind - 1].output_bytes;
          all[{CopyKind::kOutput, false, j, m}] = out;
          all[{CopyKind::kInput, true, j, m}] = out;
        }
      }
    }
    std::erase_if(all, [](const auto& entry) { return entry.second == 0; });
    return all;
  }

  std::string Copies() {
    std::map<Transfer, uint64_t> expected = Expected();
    std::vector<int64_t> copied(schedule_.copies.size(), 0);
    std::vector<Interval> when(schedule_.copies.size(), {std::numeric_limits<int64_t>::max(), 0});
    for (const CopySpan& span : schedule_.spans) {
      if (span.copy >= copied.size() || span.start_ns < 0 || span.end_ns < span.start_ns)
        return "copy span";
      copied[span.copy] += span.end_ns - span.start_ns;
      when[span.copy].start = std::min(when[span.copy].start, span.start_ns);
      when[span.copy].end = std::max(when[span.copy].end, span.end_ns);
    }

    for (size_t i = 0; i < schedule_.copies.size(); ++i) {
      const Copy& copy = schedule_.copies[i];
      const Transfer which{copy.kind, copy.backward, copy.stage, copy.item};
      const auto found = expected.find(which);
      if (found == expected.end()) return Text("copy unexpected", copy.stage, copy.item);
      if (found->second != copy.bytes) return Text("copy bytes", copy.stage, copy.item);
      if (copy.gpu != GpuOf(copy.stage)) return Text("copy gpu", copy.stage, copy.item);
      const double rate = task_.topology.complexes[ComplexOf(copy.gpu)].bytes_per_ns;
      if (copied[i] != static_cast<int64_t>(std::ceil(static_cast<double>(copy.bytes) / rate)))
        return Text("copy time", copy.stage, copy.item);

      transfers_[which] = when[i];
      expected.erase(found);
    }
    return expected.empty() ? std::string() : std::string("copy missing");
  }

  // One copy at a time in each direction of each root complex.
  std::string Links() {
    std::map<std::pair<uint32_t, bool>, std::vector<Interval>> links;
    for (const CopySpan& span : schedule_.spans) {
      const Copy& copy = schedule_.copies[span.copy];
      const bool up = copy.kind != CopyKind::kOutput && copy.kind != CopyKind::kSums;
      links[{ComplexOf(copy.gpu), up}].push_back({span.start_ns, span.end_ns});
    }
    for (auto& [link, spans] : links) {
      if (!AreApart(&spans)) return "link of complex " + std::to_string(link.first);
    }
    return {};
  }

  static bool AreApart(std::vector<Interval>* spans) {
    std::sort(spans->begin(), spans->end(),
              [](const Interval& a, const Interval& b) { return a.start < b.start; });
    for (size_t i = 1; i < spans->size(); ++i) {
      if ((*spans)[i].start < (*spans)[i - 1].end) return false;
    }
    return true;
  }

  // GPipe's order, and one thing at a time on a GPU.
  std::string Order() {
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
      int64_t free = 0;
      for (const bool backward : {false, true}) {
        for (uint32_t k = 0; k < stages_; ++k) {
          const uint32_t j = backward ? stages_ - 1 - k : k;
          if (GpuOf(j) != gpu) continue;
          for (uint32_t m = 0; m < task_.micro_batches; ++m) {
            const Interval& span = work_.at({backward, j, m});
            if (span.start < free) return Text("order", j, m);
            free = span.end;
          }
        }
      }
    }
    const int64_t turn = work_.at({false, stages_ - 1, task_.micro_batches - 1}).end;
    return work_.at({true, stages_ - 1, 0}).start < turn ? "order of passes" : "";
  }

  // A transfer of nothing is there when what it waits for is.
  Interval When(const Transfer& transfer, int64_t otherwise) const {
    const auto found = transfers_.find(transfer);
    return found != transfers_.end() ? found->second : Interval{otherwise, otherwise};
  }

  std::string Needs() {
    for (const auto& [which, span] : work_) {
      const auto [backward, j, m] = which;
      const Stage& stage = task_.stages[j];
      const bool kept = backward && j + gpus_ >= stages_;
      for (uint32_t layer = stage.first; layer < stage.behind && !kept; ++layer) {
        if (When({CopyKind::kWeights, backward, j, layer}, 0).end > span.start)
          return Text("early weights", j, m);
      }

      if (backward && When({CopyKind::kSaved, true, j, m}, 0).end > span.start)
        return Text("early saved input", j, m);
      const bool from = backward ? j + 1 < stages_ : j > 0;
      if (from) {
        const uint32_t source = backward ? j + 1 : j - 1;
        const int64_t made = work_.at({backward, source, m}).end;
        const Interval down = When({CopyKind::kOutput, backward, source, m}, made);
        const Interval up = When({CopyKind::kInput, backward, j, m}, down.end);
        if (down.start < made || up.start < down.end || span.start < up.end)
          return Text("early input", j, m);
      }

      for (uint32_t layer = stage.first; layer < stage.behind && backward; ++layer) {
        if (When({CopyKind::kSums, true, j, layer}, span.end).start < span.end)
          return Text("early sums", j, m);
      }
    }
    return {};
  }

  struct Held {
    Interval when;
    uint64_t bytes;
  };

  // What a GPU has, from when to when.
  std::vector<Held> HeldBy(uint32_t gpu) const {
    std::vector<Held> held;
    for (const auto& [which, when] : transfers_) {
      const auto [kind, backward, j, item] = which;
      if (GpuOf(j) != gpu) continue;
      const Stage& stage = task_.stages[j];
      const bool stays = !backward && j + gpus_ >= stages_;
      const int64_t first = work_.at({true, j, 0}).start;
      const int64_t last = work_.at({backward || stays, j, task_.micro_batches - 1}).end;
      switch (kind) {
        case CopyKind::kWeights:
          held.push_back({{when.start, last}, task_.layers[item].weight_bytes});
          break;
        case CopyKind::kSums:
          held.push_back({{first, when.end}, task_.layers[item].gradient_bytes});
          break;
        case CopyKind::kOutput:
          held.push_back({{work_.at({backward, j, item}).start, when.end},
                          backward ? stage.input_bytes : stage.output_bytes});
          break;
        case CopyKind::kSaved:
        case CopyKind::kInput:
          held.push_back(
              {{when.start, work_.at({backward, j, item}).end},
               backward && kind == CopyKind::kInput ? stage.output_bytes : stage.input_bytes});
          break;
      }
    }

    for (const auto& [which, when] : work_) {
      const auto [backward, j, m] = which;
      if (GpuOf(j) == gpu) held.push_back({when, WorkOf(task_.stages[j], backward)});
    }
    return held;
  }

  uint64_t WorkOf(const Stage& stage, bool backward) const {
    uint64_t kept = 0, work = 0;
    for (uint32_t layer = stage.first; layer < stage.behind; ++layer) {
      const PipelineLayer& cost = task_.layers[layer];
      kept += backward ? cost.kept_bytes : 0;
      work = std::max(work, backward ? cost.backward_work_bytes : cost.forward_work_bytes);
    }
    return kept + work;
  }

  uint64_t PeakOf(uint32_t gpu) const {
    // At one moment, first what goes, then what comes.
    std::vector<std::pair<int64_t, int64_t>> changes;
    for (const Held& held : HeldBy(gpu)) {
      changes.emplace_back(held.when.start, static_cast<int64_t>(held.bytes));
      changes.emplace_back(held.when.end, -static_cast<int64_t>(held.bytes));
    }
    std::sort(changes.begin(), changes.end());
    int64_t now = 0, peak = 0;
    for (const auto& [when, bytes] : changes) peak = std::max(peak, now += bytes);
    return static_cast<uint64_t>(peak);
  }

  std::string Memory() {
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
      if (PeakOf(gpu) > task_.gpu_bytes) return "memory of GPU " + std::to_string(gpu);
    }
    return {};
  }

  std::string End() {
    int64_t end = 0;
    for (const auto& [which, when] : work_) end = std::max(end, when.end);
    if (schedule_.compute_end_ns != end) return "end of computing";
    for (const auto& [which, when] : transfers_) end = std::max(end, when.end);
    return schedule_.step_ns == end ? "" : "end of the step";
  }

  const ScheduleTask& task_;
  const PipelineSchedule& schedule_;
  const uint32_t stages_, gpus_;
  std::map<Work, Interval> work_;
  std::map<Transfer, Interval> transfers_;
};

}  // namespace

std::string CheckSchedule(const ScheduleTask& task, const PipelineSchedule& schedule) {
  return Checker(task, schedule).Check();
}

uint64_t PeakBytes(const ScheduleTask& task, const PipelineSchedule& schedule) {
  return Checker(task, schedule).Peak();
}

}  // namespace tidepool::trainer
