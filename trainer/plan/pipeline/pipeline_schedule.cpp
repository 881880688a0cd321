#include "trainer/plan/pipeline/pipeline_schedule.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kNotYet = -1;

// Priority on a link: boundary tensors and weights by visit; sums after all tensors.
constexpr uint32_t kNeeded = 0, kLeaves = 1;

// A stage in forward or in backward, on its GPU. Visits are numbered in step order.
struct Visit {
  uint32_t stage = 0, gpu = 0;
  bool backward = false;
  uint32_t before = 0;  // the previous visit on this GPU
  bool has_before = false;
  bool keeps_weights = false;  // the next visit on this GPU is the same stage, in backward
  bool has_weights = false;    // kept by the previous visit

  // Copies before it computes: each layer's weights, and in backward the first saved input.
  uint32_t loads = 0, loads_asked = 0, loads_there = 0;
  bool active = false, ended = false;  // has all its room; has computed everything
  uint64_t room = 0;                   // GPU bytes that it holds
  uint32_t computed = 0;               // completed micro-batches
  int64_t computes_until = kNotYet;

  // By micro-batch.
  std::vector<bool> input_asked, input_there, saved_asked, saved_there, output_there;
};

class Simulation {
 public:
  explicit Simulation(const ScheduleTask& task)
      : task_(task),
        stages_(static_cast<uint32_t>(task.stages.size())),
        gpus_(static_cast<uint32_t>(task.order.size())),
        links_(static_cast<uint32_t>(task.topology.complexes.size()), &schedule_.spans),
        used_(gpus_, 0),
        current_(gpus_, 0),
        visits_of_(gpus_) {
    for (uint32_t v = 0; v < 2 * stages_; ++v) AddVisit(v);
  }

  PipelineSchedule Run() {
    int64_t now = 0;
    for (;;) {
      Settle(now);
      const int64_t next = NextEvent();
      if (next == kNotYet) break;
      now = next;
      EndComputes(now);
      for (const uint32_t copy : links_.TakeEnded(now)) Arrive(copy);
    }

    for (const Visit& visit : visits_)
      TP_CHECK(visit.ended, "a stage of the schedule waits for ever");
    schedule_.step_ns = now;
    return std::move(schedule_);
  }

 private:
  void AddVisit(uint32_t v) {
    Visit visit;
    visit.backward = v >= stages_;
    visit.stage = visit.backward ? 2 * stages_ - 1 - v : v;
    visit.gpu = task_.order[visit.stage % gpus_];

    std::vector<uint32_t>& mine = visits_of_[visit.gpu];
    if (!mine.empty()) {
      visit.has_before = true;
      visit.before = mine.back();
      Visit& before = visits_[visit.before];
      visit.has_weights = before.keeps_weights = before.stage == visit.stage;
    }
    mine.push_back(v);

    const Stage& stage = task_.stages[visit.stage];
    if (!visit.has_weights) {
      visit.loads = stage.behind - stage.first;
      if (visit.backward && HasInput(visit)) ++visit.loads;
    }
    for (auto* flags : {&visit.input_asked, &visit.input_there, &visit.saved_asked,
                        &visit.saved_there, &visit.output_there})
      flags->assign(task_.micro_batches, false);
    visits_.push_back(std::move(visit));
  }

  // In forward from the previous stage, in backward from the next one.
  bool HasInput(const Visit& visit) const { return visit.stage > 0; }
  bool HasSource(const Visit& visit) const {
    return visit.backward ? visit.stage + 1 < stages_ : visit.stage > 0;
  }
  bool HasTarget(const Visit& visit) const {
    return visit.backward ? visit.stage > 0 : visit.stage + 1 < stages_;
  }
  uint64_t InputBytes(const Visit& visit) const {
    const Stage& stage = task_.stages[visit.stage];
    return visit.backward ? stage.output_bytes : stage.input_bytes;
  }
  uint64_t OutputBytes(const Visit& visit) const {
    const Stage& stage = task_.stages[visit.stage];
    return visit.backward ? stage.input_bytes : stage.output_bytes;
  }
  uint64_t Needed(const Visit& visit) const {
    const Stage& stage = task_.stages[visit.stage];
    return visit.backward ? stage.backward_bytes : stage.forward_bytes;
  }

  // Starts all that can start now. Work without a duration completes at once, so others may follow.
  void Settle(int64_t now) {
    do {
      moved_ = false;
      for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
        const std::vector<uint32_t>& mine = visits_of_[gpu];
        if (current_[gpu] == mine.size()) continue;
        const uint32_t v = mine[current_[gpu]];

        TryActivate(v);
        AskLoads(v);
        AskTensors(v);
        StartCompute(v, now);
        if (current_[gpu] + 1 < mine.size()) AskLoads(mine[current_[gpu] + 1]);
      }
    } while (moved_);
    links_.Assign(now);
  }

  void TryActivate(uint32_t v) {
    Visit& visit = visits_[v];
    if (visit.active || (visit.has_before && !visits_[visit.before].ended)) return;
    const uint64_t more = Needed(visit) - visit.room;
    if (used_[visit.gpu] + more > task_.gpu_bytes) return;
    used_[visit.gpu] += more;
    visit.room += more;
    visit.active = moved_ = true;
  }

  // Rule 3.
  void AskLoads(uint32_t v) {
    Visit& visit = visits_[v];
    if (visit.has_before) {
      const Visit& before = visits_[visit.before];
      if (before.computed == 0 && before.computes_until == kNotYet) return;
    }

    const Stage& stage = task_.stages[visit.stage];
    while (visit.loads_asked < visit.loads) {
      const uint32_t layer = stage.first + visit.loads_asked;
      const bool saved = layer == stage.behind;
      const uint64_t bytes = saved ? stage.input_bytes : task_.layers[layer].weight_bytes;
      if (!visit.active) {
        const bool full = used_[visit.gpu] + bytes > task_.gpu_bytes;
        if (full && !TP_PLANTED("pipeline.prefetches_too_much")) return;

        used_[visit.gpu] += bytes;
        visit.room += bytes;
      }

      ++visit.loads_asked;
      if (saved) visit.saved_asked[0] = true;
      Ask(v, saved ? CopyKind::kSaved : CopyKind::kWeights, saved ? 0 : layer, bytes);
    }
  }

  // Rule 4: for the micro-batch that is computed now or next, and the one after it.
  void AskTensors(uint32_t v) {
    Visit& visit = visits_[v];
    if (!visit.active) return;
    const uint32_t behind = std::min(visit.computed + 2, task_.micro_batches);
    for (uint32_t m = visit.computed; m < behind; ++m) {
      if (visit.backward && HasInput(visit) && !visit.saved_asked[m]) {
        visit.saved_asked[m] = true;
        Ask(v, CopyKind::kSaved, m, task_.stages[visit.stage].input_bytes);
      }

      if (HasSource(visit) && !visit.input_asked[m] && visits_[v - 1].output_there[m]) {
        visit.input_asked[m] = true;
        Ask(v, CopyKind::kInput, m, InputBytes(visit));
      }
    }
  }

  void StartCompute(uint32_t v, int64_t now) {
    Visit& visit = visits_[v];
    const uint32_t m = visit.computed;
    if (!visit.active || visit.computes_until != kNotYet || m == task_.micro_batches) return;
    if (visit.loads_there < visit.loads && !TP_PLANTED("pipeline.computes_early")) return;
    if (HasSource(visit) && !visit.input_there[m]) return;
    if (visit.backward && HasInput(visit) && !visit.saved_there[m]) return;
    if (HasTarget(visit) && m >= 2 && !visit.output_there[m - 2]) return;

    const Stage& stage = task_.stages[visit.stage];
    visit.computes_until = now + (visit.backward ? stage.backward_ns : stage.forward_ns);
    schedule_.computes.push_back(
        {visit.stage, m, visit.backward, visit.gpu, now, visit.computes_until});
    moved_ = true;
  }

  void EndComputes(int64_t now) {
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
      if (current_[gpu] == visits_of_[gpu].size()) continue;
      const uint32_t v = visits_of_[gpu][current_[gpu]];
      Visit& visit = visits_[v];
      if (visit.computes_until == kNotYet || visit.computes_until > now) continue;

      visit.computes_until = kNotYet;
      schedule_.compute_end_ns = now;
      const uint32_t m = visit.computed++;
      if (HasTarget(visit)) Ask(v, CopyKind::kOutput, m, OutputBytes(visit));
      if (visit.computed == task_.micro_batches) End(v);
    }
  }

  // Releases memory to the next visits: all but what is still leaving, and weights that stay.
  void End(uint32_t v) {
    Visit& visit = visits_[v];
    const Stage& stage = task_.stages[visit.stage];
    visit.ended = moved_ = true;
    ++current_[visit.gpu];

    uint64_t stays = 0;
    if (HasTarget(visit)) {
      const auto leaving = static_cast<uint64_t>(
          std::count(visit.output_there.begin(), visit.output_there.end(), false));
      stays += leaving * OutputBytes(visit);
    }
    if (visit.backward) stays += stage.gradient_bytes;

    used_[visit.gpu] -= visit.room - stays;
    visit.room = stays;
    if (visit.keeps_weights) {
      used_[visit.gpu] += stage.weight_bytes;
      visits_[v + 1 + 2 * (stages_ - 1 - visit.stage)].room = stage.weight_bytes;
    }

    if (!visit.backward) return;
    for (uint32_t layer = stage.behind; layer-- > stage.first;)
      Ask(v, CopyKind::kSums, layer, task_.layers[layer].gradient_bytes);
  }

  void Ask(uint32_t v, CopyKind kind, uint32_t item, uint64_t bytes) {
    const Visit& visit = visits_[v];
    const auto copy = static_cast<uint32_t>(schedule_.copies.size());
    moved_ = true;
    if (bytes == 0) {
      Note(v, kind, item, 0);
      return;
    }

    schedule_.copies.push_back({kind, visit.stage, item, visit.backward, visit.gpu, bytes});
    visit_of_copy_.push_back(v);
    const bool up = schedule_.copies.back().up();
    (up ? schedule_.bytes_up : schedule_.bytes_down) += bytes;

    const uint32_t complex = task_.topology.ComplexOf(visit.gpu);
    CopyNeed need{.kind = kind == CopyKind::kSums ? kLeaves : kNeeded, .visit = v, .copy = copy};
    // Weights come before tensors, and tensors by micro-batch.
    need.item = kind == CopyKind::kWeights || kind == CopyKind::kSums ? 0 : item + 1;
    links_.Request(complex, up, need,
                   CopyNs(bytes, task_.topology.complexes[complex].bytes_per_ns));
  }

  void Arrive(uint32_t copy) {
    const Copy& arrived = schedule_.copies[copy];
    Note(visit_of_copy_[copy], arrived.kind, arrived.item, arrived.bytes);
  }

  void Note(uint32_t v, CopyKind kind, uint32_t item, uint64_t bytes) {
    Visit& visit = visits_[v];
    switch (kind) {
      case CopyKind::kWeights: ++visit.loads_there; return;
      case CopyKind::kInput: visit.input_there[item] = true; return;
      case CopyKind::kSaved:
        visit.saved_there[item] = true;
        if (item == 0 && !visit.has_weights) ++visit.loads_there;
        return;
      case CopyKind::kOutput: visit.output_there[item] = true; break;
      case CopyKind::kSums: break;
    }

    if (!visit.ended) return;
    used_[visit.gpu] -= bytes;
    visit.room -= bytes;
  }

  int64_t NextEvent() const {
    int64_t next = links_.NextEnd();
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
      if (current_[gpu] == visits_of_[gpu].size()) continue;
      const int64_t until = visits_[visits_of_[gpu][current_[gpu]]].computes_until;
      if (until != kNotYet && (next == kNotYet || until < next)) next = until;
    }
    return next;
  }

  const ScheduleTask& task_;
  const uint32_t stages_, gpus_;
  PipelineSchedule schedule_;
  std::vector<uint32_t> visit_of_copy_;
  CopyLinks links_;
  std::vector<Visit> visits_;
  // By GPU: bytes in use, and the current visit.
  std::vector<uint64_t> used_;
  std::vector<size_t> current_;
  std::vector<std::vector<uint32_t>> visits_of_;
  bool moved_ = false;  // something started that others may wait for
};

}  // namespace

double PipelineSchedule::BubbleShare(uint32_t gpus) const {
  int64_t busy = 0;
  for (const ComputeSpan& span : computes) busy += span.end_ns - span.start_ns;
  if (compute_end_ns == 0) return 0;
  return 1 - static_cast<double>(busy) / (static_cast<double>(compute_end_ns) * gpus);
}

PipelineSchedule ScheduleOf(const ScheduleTask& task) {
  return Simulation(task).Run();
}

}  // namespace tidepool::trainer
