#include "bench/pipeline/paced_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/harness/die.h"
#include "bench/pipeline/paced_ranks.h"
#include "bench/pipeline/tensor_road.h"
#include "trainer/pipeline/stage_plan.h"
#include "trainer/plan/pipeline/stage_times.h"

namespace tidepool::bench {
namespace {

using trainer::PipelineLayer;
using trainer::Stage;
using Kind = RoadItem::Kind;

// The stages of a run, and the GPU that computes each.
struct PlacedStages {
  std::vector<Stage> stages;
  std::vector<uint32_t> gpus;  // by stage

  uint32_t count() const { return static_cast<uint32_t>(stages.size()); }
};

PlacedStages Placed(const PacedMachine& machine, const PacedPlan& plan,
                    const std::vector<uint32_t>& order) {
  PlacedStages placed{.stages = trainer::StageTable(machine.task).StagesOf(plan.ends), .gpus = {}};
  for (size_t stage = 0; stage < placed.stages.size(); ++stage)
    placed.gpus.push_back(order[stage % order.size()]);
  return placed;
}

// The most bytes, weights and sums excluded, that a GPU needs in any of its stages.
uint64_t BesideWeights(const PlacedStages& placed, uint32_t gpu) {
  uint64_t most = 0;
  for (uint32_t stage = 0; stage < placed.count(); ++stage) {
    if (placed.gpus[stage] != gpu) continue;
    const Stage& one = placed.stages[stage];
    most = std::max({most, one.forward_bytes - one.weight_bytes,
                     one.backward_bytes - one.weight_bytes - one.gradient_bytes});
  }
  return most;
}

// The work of one GPU in a step.
class StageRank {
 public:
  StageRank(const PacedMachine& machine, const PlacedStages& placed, uint32_t gpu, RankCache* cache)
      : task_(machine.task), placed_(placed), gpu_(gpu), cache_(cache) {}

  void Step(TensorRoad* road) {
    road_ = road;
    for (uint32_t stage = 0; stage + 1 < placed_.count(); ++stage) {
      if (placed_.gpus[stage] == gpu_) Forward(stage);
    }
    for (uint32_t stage = placed_.count(); stage-- > 0;) {
      if (placed_.gpus[stage] == gpu_) Backward(stage);
    }
  }

 private:
  bool IsLast(uint32_t stage) const { return stage + 1 == placed_.count(); }

  // At most two inputs and two outputs are on the GPU: one in use, one in flight.
  template <typename Each>
  void WantAhead(uint32_t batch, const Each& each) const {
    if (batch == 0) each(0);
    if (batch + 1 < task_.micro_batches) each(batch + 1);
  }

  void Forward(uint32_t stage) {
    for (uint32_t batch = 0; batch < task_.micro_batches; ++batch) {
      if (stage > 0) {
        WantAhead(batch, [&](uint32_t m) { road_->Want(gpu_, {Kind::kInput, stage, m}); });
        Await({Kind::kInput, stage, batch});
      }
      if (batch >= 2) AwaitLeft({Kind::kInput, stage + 1, batch - 2});

      ComputeForward(stage);
      std::vector<RoadItem> uses = {{Kind::kInput, stage + 1, batch}};
      if (!IsLast(stage + 1)) uses.push_back({Kind::kSaved, stage + 1, batch});
      road_->Send(gpu_, uses);
    }
  }

  void Backward(uint32_t stage) {
    const Stage& at = placed_.stages[stage];
    for (uint32_t batch = 0; batch < task_.micro_batches; ++batch) {
      WantAhead(batch, [&](uint32_t m) { WantForBackward(stage, m); });
      if (IsLast(stage)) {
        if (stage > 0) Await({Kind::kInput, stage, batch});
      } else {
        Await({Kind::kGradient, stage, batch});
        if (stage > 0) Await({Kind::kSaved, stage, batch});
      }
      if (stage > 0 && batch >= 2) AwaitLeft({Kind::kGradient, stage - 1, batch - 2});

      ComputeForward(stage);
      for (uint32_t layer = at.behind; layer-- > at.first;) {
        if (batch == 0) cache_->OpenSums(layer);
        const PipelineLayer& one = task_.layers[layer];
        cache_->Compute(layer, one.backward_ns - one.forward_ns);
        if (batch + 1 == task_.micro_batches) cache_->HandIn(layer);
      }

      if (stage > 0) road_->Send(gpu_, {{Kind::kGradient, stage - 1, batch}});
    }
  }

  void WantForBackward(uint32_t stage, uint32_t batch) const {
    if (IsLast(stage)) {
      if (stage > 0) road_->Want(gpu_, {Kind::kInput, stage, batch});
      return;
    }
    road_->Want(gpu_, {Kind::kGradient, stage, batch});
    if (stage > 0) road_->Want(gpu_, {Kind::kSaved, stage, batch});
  }

  void ComputeForward(uint32_t stage) {
    const Stage& at = placed_.stages[stage];
    for (uint32_t layer = at.first; layer < at.behind; ++layer)
      cache_->Compute(layer, task_.layers[layer].forward_ns);
  }

  void Await(const RoadItem& item) {
    cache_->StandFor([&] { road_->Await(item); });
  }
  void AwaitLeft(const RoadItem& item) {
    cache_->StandFor([&] { road_->AwaitLeft(item); });
  }

  const trainer::PipelineTask& task_;
  const PlacedStages& placed_;
  const uint32_t gpu_;
  RankCache* const cache_;
  TensorRoad* road_ = nullptr;
};

// The setup of a GPU's rCache, sized as by `trainer run --pipeline`: memory that one stage does not
// use holds the next stage's chunks.
RankCache::Setup CacheOf(const PacedMachine& machine, const PlacedStages& placed,
                         const trainer::ChunkLayout& layout, const trainer::StagePlan& plan) {
  const uint64_t beside = BesideWeights(placed, plan.rank);
  const uint64_t bytes = machine.task.gpu_bytes - std::min(beside, machine.task.gpu_bytes);
  const uint64_t least = layout.RcacheBytes(plan.rank, plan.blocks_of_one) + plan.tail_bytes;

  RankCache::Setup setup;
  setup.layout = &layout;
  setup.rank = plan.rank;
  setup.rooms = plan.rooms;
  setup.chunks.layout = &layout;
  setup.chunks.rcache_bytes = std::max(bytes / kPageBytes * kPageBytes, least);
  setup.prefetch_depth =
      layout.BlocksIn(plan.rank, setup.chunks.rcache_bytes - plan.tail_bytes) - plan.blocks_of_one;
  return setup;
}

// The most bytes, weights excluded, that a GPU needs to compute all layers; as in
// trainer/advice/pipeline_advice.cpp.
uint64_t ActivationsOf(const trainer::PipelineTask& task) {
  uint64_t kept = 0, work = 0;
  for (const PipelineLayer& layer : task.layers) {
    kept += layer.kept_bytes;
    work = std::max(work, layer.backward_work_bytes);
  }
  return kept + work;
}

}  // namespace

double FillNs(const PacedMachine& machine, const PacedPlan& plan) {
  const std::vector<Stage> stages = trainer::StageTable(machine.task).StagesOf(plan.ends);
  const double rate = machine.task.bytes_per_ns;
  const uint64_t ends_bytes = stages.front().weight_bytes + stages.front().gradient_bytes;
  double fill_ns = static_cast<double>(ends_bytes) / rate;
  for (uint32_t stage = 1; stage < std::min<size_t>(machine.task.gpus, stages.size()); ++stage) {
    // Each boundary tensor is copied down and up, in forward and in backward.
    fill_ns += static_cast<double>(stages[stage].forward_ns + stages[stage].backward_ns +
                                   4 * stages[stage].input_ns);
  }
  return fill_ns;
}

PacedResult RunPipeline(const PacedMachine& machine, const PacedPlan& plan,
                        const std::vector<uint32_t>& order, uint32_t steps, Clock* clock) {
  const PlacedStages placed = Placed(machine, plan, order);
  std::vector<std::vector<Rank>> groups;
  for (const uint32_t gpu : placed.gpus) groups.push_back({gpu});
  const trainer::StageCuts cuts{.ends = plan.ends, .ranks = placed.gpus};
  std::vector<uint32_t> group_of;
  for (uint32_t layer = 0; layer < machine.task.layers.size(); ++layer)
    group_of.push_back(cuts.StageOf(layer));

  const trainer::ChunkLayout layout = LayoutOf(machine, group_of, groups, machine.task.gpus);
  const std::vector<std::vector<ChunkId>> chunks_of = ChunkIdsOf(layout, machine);
  const std::vector<std::vector<std::byte>> weights = NumberedWeights(layout);
  std::vector<trainer::StageSpan> layers(layout.parameters.size());
  for (uint32_t layer = 0; layer < chunks_of.size(); ++layer) {
    for (const ChunkId chunk : chunks_of[layer])
      layers[layout.chunks[chunk].first_parameter] = {layer, layer};
  }

  // Roads and caches must outlive the links' threads.
  std::vector<std::unique_ptr<TensorRoad>> roads;
  std::vector<std::unique_ptr<RankCache>> caches;
  std::vector<StageRank> ranks;
  PacedRanks together(&machine, clock);
  const std::vector<uint32_t> complexes = machine.complexes();
  const uint64_t tensor = machine.task.layers.front().output_bytes;
  for (uint64_t step = 0; step <= steps; ++step)
    roads.push_back(std::make_unique<TensorRoad>(tensor, complexes, together.links()));

  for (uint32_t gpu = 0; gpu < machine.task.gpus; ++gpu) {
    const trainer::StagePlan stages =
        trainer::MakeStagePlan(layout, layers, cuts, machine.task.micro_batches, gpu);
    RankCache::Setup setup = CacheOf(machine, placed, layout, stages);

    setup.chunks_of = &chunks_of;
    setup.chunks.weights = &weights;
    setup.chunks.gpu = gpu;
    setup.chunks.complex = complexes[gpu];
    setup.chunks.links = together.links();
    setup.clock = clock;
    caches.push_back(std::make_unique<RankCache>(setup));
    ranks.emplace_back(machine, placed, gpu, caches.back().get());
  }
  return together.Run(caches, steps,
                      [&](uint32_t gpu, uint64_t step) { ranks[gpu].Step(roads[step].get()); });
}

PacedResult RunShared(const PacedMachine& machine, uint32_t steps, Clock* clock) {
  const trainer::PipelineTask& task = machine.task;
  const auto layers = static_cast<uint32_t>(task.layers.size());
  const trainer::ChunkLayout layout = LayoutOf(machine, std::vector<uint32_t>(layers, 0), {{0}}, 1);
  const std::vector<std::vector<ChunkId>> chunks_of = ChunkIdsOf(layout, machine);
  const std::vector<std::vector<std::byte>> weights = NumberedWeights(layout);
  size_t largest = 0;
  for (const auto& chunks : chunks_of) largest = std::max(largest, chunks.size());

  RankCache::Setup setup;
  setup.layout = &layout;
  setup.chunks_of = &chunks_of;
  setup.rooms = 2 * largest;
  setup.chunks.layout = &layout;
  setup.chunks.weights = &weights;
  setup.chunks.gradient_element_bytes = BytesOf(DType::kBF16);
  const uint64_t beside = std::min(ActivationsOf(task), task.gpu_bytes);
  const uint64_t least = 4 * largest * layout.BlockBytes();
  setup.chunks.rcache_bytes = std::max((task.gpu_bytes - beside) / kPageBytes * kPageBytes, least);
  setup.prefetch_depth = layout.chunks.size();
  setup.clock = clock;

  std::vector<std::unique_ptr<RankCache>> caches;
  PacedRanks together(&machine, clock);
  setup.chunks.links = together.links();
  for (uint32_t gpu = 0; gpu < task.gpus; ++gpu) {
    setup.chunks.gpu = gpu;
    setup.chunks.complex = machine.topology.ComplexOf(gpu);
    caches.push_back(std::make_unique<RankCache>(setup));
  }

  const uint32_t passes = (task.micro_batches + task.gpus - 1) / task.gpus;
  return together.Run(caches, steps, [&](uint32_t gpu, uint64_t) {
    RankCache& cache = *caches[gpu];
    for (uint32_t pass = 0; pass < passes; ++pass) {
      for (uint32_t layer = 0; layer < layers; ++layer)
        cache.Compute(layer, task.layers[layer].forward_ns);
      // ZeRO-3 does not recompute the forward pass.
      for (uint32_t layer = layers; layer-- > 0;) {
        const PipelineLayer& one = task.layers[layer];
        cache.OpenSums(layer);
        cache.Compute(layer, one.backward_ns - one.forward_ns);
        cache.HandIn(layer);
      }
    }
  });
}

}  // namespace tidepool::bench
