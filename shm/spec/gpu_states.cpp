#include "shm/spec/gpu_states.h"

#include <algorithm>
#include <string>

#include "base/point.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::shm {
namespace {

uint64_t PlaneOf(uint64_t bytes) {
  return RoundUp(bytes, kGpuPlaneAlignment);
}

}  // namespace

GpuSlot GpuSlotOf(const JobSpec& spec, ChunkId chunk) {
  const uint64_t plane = PlaneOf(spec.chunks[chunk].elements * sizeof(float));
  return {plane, 2 * plane, 3 * plane};
}

GpuStaging GpuStagingOf(const JobSpec& spec, Rank rank) {
  GpuStaging staging;
  const SpecSums* sums = spec.sums.made.get();
  if (sums != nullptr && rank < spec.states_on_gpu)
    staging.elements = sums->gpu_staging_elements[rank];
  if (sums == nullptr) TP_POINT("shm.spec_summed");
  for (uint64_t id = rank; sums == nullptr && id < spec.states_on_gpu; id += spec.world)
    staging.elements = std::max(staging.elements, spec.chunks[id].elements);

  staging.elements = std::min(staging.elements, kGpuUnitElements);
  staging.copies = PlaneOf(staging.elements * BytesOf(GradientSlotType(spec, 0)));
  staging.bytes = staging.copies +
                  (spec.dtype == DType::kF32 ? 0 : PlaneOf(staging.elements * BytesOf(spec.dtype)));
  return staging;
}

uint64_t GpuShareBytes(const JobSpec& spec, Rank rank) {
  if (rank >= spec.states_on_gpu) return 0;
  if (spec.sums.made != nullptr) return spec.sums.made->gpu_share_bytes[rank];
  TP_POINT("shm.spec_summed");
  uint64_t bytes = kGpuUnitsInFlight * GpuStagingOf(spec, rank).bytes;
  for (uint64_t id = rank; id < spec.states_on_gpu; id += spec.world)
    bytes += 2 * GpuSlotOf(spec, static_cast<ChunkId>(id)).bytes;
  return RoundUp(bytes, kGpuMemoryUnit);
}

uint64_t GpuStateBytes(const JobSpec& spec) {
  uint64_t sum = 0;
  for (Rank rank = 0; rank < spec.world; ++rank) sum += GpuShareBytes(spec, rank);
  return sum;
}

Status CheckGpuStates(const JobSpec& spec) {
  if (spec.states_on_gpu == 0) return Status();
  if (spec.states_on_gpu > spec.chunks.size()) {
    return Status(ErrorId::kJobSpecBad, "the states of " + std::to_string(spec.states_on_gpu) +
                                            " chunks are to lie on GPUs; the job has " +
                                            std::to_string(spec.chunks.size()) + " chunks");
  }

  const bool adam =
      spec.optimizer.rule == OptimizerRule::kAdamW || spec.optimizer.rule == OptimizerRule::kAdam;
  if (adam && spec.optimizer.states == StateForm::kF32) return Status();
  return Status(ErrorId::kJobSpecBad,
                "states on GPUs are fp32 states of adamw or adam; the job has " +
                    std::string(NameOf(spec.optimizer.states)) + " states of " +
                    NameOf(spec.optimizer.rule));
}

}  // namespace tidepool::shm
