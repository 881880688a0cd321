#include "shm/spec/state_footprint.h"

#include <algorithm>

#include "base/formats/plane_slack.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::shm {
namespace {

constexpr uint64_t kPlaneAlignment = 64;  // the loops are fastest at this alignment

}  // namespace

bool MaySpill(const JobSpec& spec) {
  const bool has_moments = NeedsMomentum(spec.optimizer) || NeedsVariance(spec.optimizer);
  return has_moments || (spec.dtype != DType::kF32 && spec.f32_chunks == 0);
}

SpilledPiece SpilledPieceOf(const JobSpec& spec, ChunkId chunk, uint64_t elements) {
  const StateForm form = spec.StatesOf(chunk);
  SpilledPiece piece;
  uint64_t end = MasterBytes(form, elements);
  const auto add = [&end](uint64_t bytes) {
    const uint64_t begin = RoundUp(end, kPlaneAlignment);
    end = begin + bytes;
    return begin;
  };

  if (IsSplit(form)) piece.high = add(elements * BytesOf(spec.dtype));
  if (NeedsMomentum(spec.optimizer)) piece.momentum = add(MomentBytes(form, elements));
  if (NeedsVariance(spec.optimizer)) piece.variance = add(MomentBytes(form, elements));
  piece.bytes = RoundUp(end, kPageBytes);
  return piece;
}

uint64_t PieceOffset(const JobSpec& spec, ChunkId chunk, uint32_t piece) {
  return piece * (kPageBytes + SpilledPieceBytes(spec, chunk, kPieceElements));
}

uint64_t SlotBytes(const JobSpec& spec, ChunkId chunk) {
  const uint64_t elements = spec.chunks[chunk].elements;
  const auto whole = static_cast<uint32_t>(elements / kPieceElements);
  const uint64_t rest = elements % kPieceElements;
  return PieceOffset(spec, chunk, whole) +
         (rest == 0 ? 0 : kPageBytes + SpilledPieceBytes(spec, chunk, rest));
}

PlaneBytes HostPlaneBytesOf(const JobSpec& spec, ChunkId chunk, bool spilled) {
  PlaneBytes bytes = PlaneBytesOf(spec, chunk);
  if (!spilled && !IsOnGpu(spec, chunk)) return bytes;
  if (spec.DTypeOf(chunk) != DType::kF32) bytes.master = 0;
  bytes.momentum = bytes.variance = 0;
  return bytes;
}

uint64_t WeightSlotBytes(const JobSpec& spec, ChunkId first) {
  if (spec.sums.made != nullptr && spec.dtype != DType::kF32 && first < spec.chunks.size())
    return SlotBytesFromSums(spec, first);
  TP_POINT("shm.spec_summed");
  uint64_t largest = 0;
  for (uint64_t id = std::max(first, spec.f32_chunks); id < spec.chunks.size(); ++id) {
    largest =
        std::max(largest, RoundUp(spec.chunks[id].elements * BytesOf(spec.dtype), kPageBytes));
  }
  return largest;
}

StateBytes HostStateBytesOf(const JobSpec& spec, ChunkId first_spilled,
                            const WeightSpill& weights) {
  TP_POINT("shm.spec_summed");
  StateBytes sum = StateBytesOf(spec);
  for (ChunkId chunk = 0; chunk < spec.chunks.size(); ++chunk) {
    if (chunk < first_spilled && !IsOnGpu(spec, chunk)) continue;
    const PlaneBytes all = PlaneBytesOf(spec, chunk), host = HostPlaneBytesOf(spec, chunk, true);
    sum.master -= PooledBytes(all.master) - RoundUp(host.master, kPageBytes);
    sum.momentum -= PooledBytes(all.momentum);
    sum.variance -= PooledBytes(all.variance);
    // The remaining planes are not traversed in one loop, so they need no spacing.
    sum.param16 -= SlackOf(all.param16);
    sum.gradient -= SlackOf(all.gradient);
  }
  if (!weights.any()) return sum;
  for (uint64_t id = weights.first; id < spec.chunks.size(); ++id) {
    sum.param16 -= RoundUp(PlaneBytesOf(spec, static_cast<ChunkId>(id)).param16, kPageBytes);
  }
  sum.param16 += weights.areas * WeightAreaBytes(spec, weights.first);
  return sum;
}

uint64_t BytesOffHost(const JobSpec& spec, ChunkId chunk) {
  const PlaneBytes all = PlaneBytesOf(spec, chunk), host = HostPlaneBytesOf(spec, chunk, true);
  const uint64_t moments = PooledBytes(all.momentum) + PooledBytes(all.variance);
  return PooledBytes(all.master) - RoundUp(host.master, kPageBytes) + moments +
         SlackOf(all.param16) + SlackOf(all.gradient);
}

uint64_t HostBytesOf(const JobSpec& spec, ChunkId first_spilled, const WeightSpill& weights) {
  const SpecSums* sums = spec.sums.made.get();
  if (sums == nullptr) return HostStateBytesOf(spec, first_spilled, weights).total();
  const uint64_t states =
      sums->states.total() - sums->off_host[std::min<uint64_t>(first_spilled, spec.chunks.size())];
  if (!weights.any()) return states;
  return states - sums->weights[weights.first] +
         weights.areas * WeightAreaBytes(spec, weights.first);
}

uint64_t PooledPlanesOf(const JobSpec& spec, ChunkId chunk) {
  const PlaneBytes all = PlaneBytesOf(spec, chunk);
  const uint64_t pooled = PooledBytes(all.master) + PooledBytes(all.momentum) +
                          PooledBytes(all.variance) + PooledBytes(all.param16) +
                          PooledBytes(all.gradient);
  return pooled - (IsOnGpu(spec, chunk) ? BytesOffHost(spec, chunk) : 0);
}

uint64_t MovablePlanesOf(const JobSpec& spec, ChunkId chunk) {
  const PlaneBytes all = PlaneBytesOf(spec, chunk), host = HostPlaneBytesOf(spec, chunk, true);
  return (host.master == 0 ? PooledBytes(all.master) : 0) + PooledBytes(all.momentum) +
         PooledBytes(all.variance);
}

uint64_t MovablePlanesFrom(const JobSpec& spec, uint64_t from, ChunkId first_spilled) {
  const uint64_t end = std::min<uint64_t>(first_spilled, spec.chunks.size());
  if (from >= end) return 0;
  if (spec.sums.made != nullptr)
    return spec.sums.made->movable[from] - spec.sums.made->movable[end];
  uint64_t sum = 0;
  for (uint64_t id = std::max<uint64_t>(from, spec.states_on_gpu); id < end; ++id)
    sum += MovablePlanesOf(spec, static_cast<ChunkId>(id));
  return sum;
}

uint64_t HostPlanesFrom(const JobSpec& spec, uint64_t from, ChunkId first_spilled,
                        const WeightSpill& weights) {
  const uint64_t chunks = spec.chunks.size();
  const auto both = [from, chunks](ChunkId first) {
    return std::min<uint64_t>(chunks, std::max<uint64_t>(from, first));
  };

  uint64_t sum = 0;
  if (const SpecSums* sums = spec.sums.made.get()) {
    const uint64_t off_host = sums->off_host[both(first_spilled)] - sums->off_host[chunks];
    sum = sums->pooled[from] - off_host - sums->weights[both(weights.first)];
  } else {
    for (uint64_t i = from; i < chunks; ++i) {
      const auto id = static_cast<ChunkId>(i);
      sum += PooledPlanesOf(spec, id);
      if (id >= first_spilled && !IsOnGpu(spec, id)) sum -= BytesOffHost(spec, id);
      if (id >= weights.first) sum -= RoundUp(PlaneBytesOf(spec, id).param16, kPageBytes);
    }
  }

  if (!weights.any()) return sum;
  return sum +
         std::min<uint64_t>(weights.areas, chunks - from) * WeightAreaBytes(spec, weights.first);
}

WeightSpill WeightsSpilledFor(const JobSpec& spec, ChunkId first_spilled, uint64_t pool_bytes) {
  const auto chunks = static_cast<ChunkId>(spec.chunks.size());
  const uint64_t all = HostBytesOf(spec, first_spilled);
  const ChunkId from = std::max({first_spilled, spec.states_on_gpu, spec.f32_chunks});
  if (from >= chunks || spec.dtype == DType::kF32 || all <= pool_bytes) return {};
  if (spec.sums.made != nullptr && !TP_PLANTED("shm.windows_tried_each_time"))
    return WindowFromSums(spec, from, all - pool_bytes);

  TP_POINT("shm.spec_summed");
  WeightSpill least;
  uint64_t least_bytes = all;
  for (uint32_t areas = kWeightAreasMax; areas > 0; --areas) {
    uint64_t host = all, slot = 0;  // without the window
    for (ChunkId first = chunks; first > from;) {
      const uint64_t plane = RoundUp(PlaneBytesOf(spec, --first).param16, kPageBytes);
      host -= plane;
      slot = std::max(slot, plane);
      const uint64_t with_window = host + 2 * areas * slot;

      if (chunks - first <= 2 * areas || with_window >= least_bytes) continue;
      least = {.first = first, .areas = areas};
      if (with_window <= pool_bytes) return least;
      least_bytes = with_window;
    }
  }

  return least;
}

uint64_t LeastHostBytesOf(const JobSpec& spec) {
  if (!MaySpill(spec)) return HostBytesOf(spec, kNoSpill);
  return HostBytesOf(spec, 0, WeightsSpilledFor(spec, 0, 0));
}

uint64_t NvmeBytesOf(const JobSpec& spec, ChunkId first_spilled) {
  if (spec.sums.made != nullptr)
    return spec.sums.made->nvme[std::min<uint64_t>(first_spilled, spec.chunks.size())];
  TP_POINT("shm.spec_summed");
  uint64_t sum = 0;
  for (uint64_t id = std::max(first_spilled, spec.states_on_gpu); id < spec.chunks.size(); ++id) {
    sum += SpilledChunkBytes(spec, static_cast<ChunkId>(id));
  }
  return sum;
}

}  // namespace tidepool::shm
