#include "shm/spill.h"

#include <algorithm>

#include "base/units.h"

namespace tidepool::shm {
namespace {

uint64_t SpilledPlanes(const JobSpec& spec) {
  return 1 + (NeedsMomentum(spec.optimizer) ? 1 : 0) + (NeedsVariance(spec.optimizer) ? 1 : 0);
}

}  // namespace

bool MaySpill(const JobSpec& spec) {
  if (spec.optimizer.states != StateForm::kF32) return false;
  return spec.dtype != DType::kF32 || SpilledPlanes(spec) > 1;
}

uint64_t SpilledPieceBytes(const JobSpec& spec, uint64_t elements) {
  return RoundUp(SpilledPlanes(spec) * elements * sizeof(float), kPageBytes);
}

uint64_t PieceOffset(const JobSpec& spec, uint32_t piece) {
  return piece * (kPageBytes + SpilledPieceBytes(spec, kPieceElements));
}

uint64_t SlotBytes(const JobSpec& spec, ChunkId chunk) {
  const uint64_t elements = spec.chunks[chunk].elements;
  const auto whole = static_cast<uint32_t>(elements / kPieceElements);
  const uint64_t rest = elements % kPieceElements;
  return PieceOffset(spec, whole) + (rest == 0 ? 0 : kPageBytes + SpilledPieceBytes(spec, rest));
}

PlaneBytes HostPlaneBytesOf(const JobSpec& spec, ChunkId chunk, bool spilled) {
  PlaneBytes bytes = PlaneBytesOf(spec, chunk);
  if (!spilled) return bytes;
  if (spec.dtype != DType::kF32) bytes.master = 0;
  bytes.momentum = bytes.variance = 0;
  return bytes;
}

StateBytes HostStateBytesOf(const JobSpec& spec, ChunkId first_spilled) {
  StateBytes sum = StateBytesOf(spec);
  for (uint64_t id = first_spilled; id < spec.chunks.size(); ++id) {
    const auto chunk = static_cast<ChunkId>(id);
    const PlaneBytes all = PlaneBytesOf(spec, chunk), host = HostPlaneBytesOf(spec, chunk, true);
    sum.master -= RoundUp(all.master, kPageBytes) - RoundUp(host.master, kPageBytes);
    sum.momentum -= RoundUp(all.momentum, kPageBytes);
    sum.variance -= RoundUp(all.variance, kPageBytes);
  }
  return sum;
}

uint64_t NvmeBytesOf(const JobSpec& spec, ChunkId first_spilled) {
  uint64_t sum = 0;
  for (uint64_t id = first_spilled; id < spec.chunks.size(); ++id) sum += SpilledChunkBytes(spec, static_cast<ChunkId>(id));
  return sum;
}

}  // namespace tidepool::shm
