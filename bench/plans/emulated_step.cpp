#include "bench/plans/emulated_step.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/units.h"
#include "bench/harness/die.h"
#include "bench/pipeline/linked_chunks.h"
#include "bench/pipeline/paced_ranks.h"
#include "bench/pipeline/rank_cache.h"
#include "trainer/layout/build_layout.h"
#include "trainer/plan/search.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kChunkBytes = 512 * kKiB;
constexpr double kLinkBytesPerNs = 0.5;  // 0.5 GB/s: a step takes about a tenth of a second
constexpr double kForwardShare = 1.0 / 3;

PacedMachine MachineFor(const EmulatedModel& model, double computing) {
  PacedMachine machine;
  machine.chunk_bytes = kChunkBytes;
  machine.topology.complexes.push_back({.gpus = 1, .bytes_per_ns = kLinkBytesPerNs});

  trainer::PipelineLayer layer;
  layer.weight_bytes = model.chunks_of_layer * kChunkBytes;
  const double compute_ns = computing * static_cast<double>(layer.weight_bytes) / kLinkBytesPerNs;
  layer.forward_ns = static_cast<int64_t>(kForwardShare * compute_ns);
  layer.backward_ns = static_cast<int64_t>(compute_ns) - layer.forward_ns;
  machine.task.layers.assign(model.layers, layer);
  machine.task.gpus = 1;
  machine.task.micro_batches = 1;
  machine.task.bytes_per_ns = kLinkBytesPerNs;
  return machine;
}

// The layout in which the first `resident` chunks are always resident.
trainer::ChunkLayout LayoutWith(const PacedMachine& machine, uint64_t resident) {
  std::vector<trainer::ParameterNote> notes;
  trainer::LayoutOptions options;
  options.dtype = DType::kBF16;
  options.chunk_bytes = kChunkBytes;
  options.fuses_small = false;

  for (uint32_t layer = 0; layer < machine.task.layers.size(); ++layer) {
    for (uint32_t i = 0; i < machine.ChunksOf(layer); ++i) {
      trainer::ParameterNote note;
      note.name = std::to_string(layer) + "." + std::to_string(i);
      note.dims = {kChunkBytes / BytesOf(DType::kBF16)};
      if (notes.size() < resident) options.resident.push_back(note.name);
      notes.push_back(std::move(note));
    }
  }
  return OrDie(trainer::BuildLayout(notes, options));
}

// Forward through the layers and back: each layer's chunks are used together.
trainer::AccessSchedule OrderOf(const std::vector<std::vector<ChunkId>>& chunks_of) {
  trainer::AccessSchedule order;
  for (const auto& chunks : chunks_of)
    order.moments.push_back({trainer::MomentKind::kUse, 0, chunks});
  for (size_t layer = chunks_of.size(); layer-- > 0;)
    order.moments.push_back({trainer::MomentKind::kUse, 0, chunks_of[layer]});
  return order;
}

}  // namespace

EmulatedPoint::EmulatedPoint(const EmulatedModel& model, double computing, double room)
    : machine_(MachineFor(model, computing)),
      layout_(LayoutWith(machine_, 0)),
      order_(OrderOf(ChunkIdsOf(layout_, machine_))),
      presets_(trainer::PresetWays({&order_, &layout_, 0}, /*prefetches=*/true)) {
  const uint64_t least = trainer::FindWay(presets_, "zero3")->blocks,
                 all = layout_.EvictableChunks(0);
  limit_blocks_ = least + static_cast<uint64_t>(room * static_cast<double>(all - least));
}

EmulatedResult EmulatedPoint::Run(const Way& way, uint32_t steps, Clock* clock) const {
  const std::vector<std::vector<ChunkId>> chunks_of = ChunkIdsOf(way.layout, machine_);
  const std::vector<std::vector<std::byte>> weights = NumberedWeights(way.layout);

  RankCache::Setup setup;
  setup.layout = &way.layout;
  setup.chunks_of = &chunks_of;
  setup.rooms = 2 * chunks_of.front().size();
  setup.chunks.layout = &way.layout;
  setup.chunks.weights = &weights;
  setup.chunks.gradient_element_bytes = BytesOf(DType::kBF16);
  setup.chunks.rcache_bytes = way.layout.RcacheBytes(0, way.blocks) + setup.rooms * kChunkBytes;
  setup.prefetch_depth = way.prefetch_depth;
  setup.clock = clock;

  PacedRanks together(&machine_, clock);
  setup.chunks.links = together.links();
  std::vector<std::unique_ptr<RankCache>> caches;
  caches.push_back(std::make_unique<RankCache>(setup));
  const PacedResult measured = together.Run(caches, steps, [&](uint32_t, uint64_t) {
    RankCache& cache = *caches.front();
    const auto layers = static_cast<uint32_t>(machine_.task.layers.size());
    for (uint32_t layer = 0; layer < layers; ++layer)
      cache.Compute(layer, machine_.task.layers[layer].forward_ns);

    for (uint32_t layer = layers; layer-- > 0;) {
      cache.OpenSums(layer);
      cache.Compute(layer, machine_.task.layers[layer].backward_ns);
      cache.HandIn(layer);
    }
  });

  const trainer::AccessSchedule order = OrderOf(chunks_of);
  const trainer::PlanWay planned =
      trainer::WayWith("run", trainer::Exchange::kSharded, way.blocks, {&order, &way.layout, 0});
  return {measured.step_ns, measured.bytes_up, planned.step.fetched};
}

std::optional<EmulatedResult> EmulatedPoint::Preset(const std::string& name, uint32_t steps,
                                                    Clock* clock) const {
  const trainer::PlanWay& way = *trainer::FindWay(presets_, name);
  if (way.blocks > limit_blocks_) return std::nullopt;
  return Run({layout_, way.blocks}, steps, clock);
}

// As trainer/advice/rcache_choice.cpp: the fewest bytes, then the fewest blocks.
uint64_t EmulatedPoint::AutoBlocks() const {
  trainer::SearchInput input;
  input.block_bytes = layout_.BlockBytes();
  input.allowed_bytes = limit_blocks_ * input.block_bytes;
  for (const trainer::ChunkPlace& chunk : layout_.chunks)
    input.chunks.push_back({.elements = chunk.elements});
  input.sizes = trainer::SizesOf(order_, trainer::EvictableMask(layout_));
  return OrDie(trainer::Search(input)).best.blocks;
}

EmulatedResult EmulatedPoint::Auto(uint32_t steps, Clock* clock) const {
  return Run({layout_, AutoBlocks()}, steps, clock);
}

EmulatedResult EmulatedPoint::WithoutPrefetch(uint32_t steps, Clock* clock) const {
  return Run({layout_, AutoBlocks(), 0}, steps, clock);
}

EmulatedResult EmulatedPoint::Static(uint32_t steps, Clock* clock) const {
  const uint64_t blocks = trainer::FindWay(presets_, "zero3")->blocks;
  Way way{LayoutWith(machine_, limit_blocks_ - blocks), blocks};
  way.blocks = std::min(blocks, way.layout.EvictableChunks(0));
  return Run(way, steps, clock);
}

}  // namespace tidepool::bench
