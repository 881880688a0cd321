#include "trainer/advice/gpu_states.h"

#include <algorithm>
#include <vector>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

// Number of leading chunks with fixed space in the rCache.
uint32_t AlwaysResident(const ChunkLayout& layout) {
  const uint32_t trained = layout.TrainedChunks();
  uint32_t chunks = 0;
  while (chunks < trained && layout.chunks[chunks].resident) ++chunks;
  return chunks;
}

// Why this job's states cannot be on a GPU, and the remedy; empty: they can.
struct Hindrance {
  std::string why, fix;
};
Hindrance HindranceOf(const client::JobSpec& spec, const GpuStatesPlace& place) {
  if (place.gpus == 0)
    return {"this run is on the host", "give --device cuda, or leave --gpu-states out"};

  const OptimizerSpec& optimizer = spec.optimizer;
  if (optimizer.rule != OptimizerRule::kAdamW && optimizer.rule != OptimizerRule::kAdam) {
    return {"GPUs update by adamw and adam alone, not by " + std::string(NameOf(optimizer.rule)),
            "give --optimizer adamw, or --gpu-states off"};
  }
  if (optimizer.states != StateForm::kF32) {
    return {"GPUs update fp32 states alone, not " + std::string(NameOf(optimizer.states)),
            "give --states fp32, or --gpu-states off"};
  }

  if (place.why_no_kernel != nullptr)
    return {place.why_no_kernel, "build where nvcc is, or give --gpu-states off"};
  return {};
}

Result<GpuStatesPlan> InSize(const GpuStatesWish& wish, const client::JobSpec& spec,
                             uint32_t gpus) {
  GpuStatesPlan plan;
  plan.chunks = GpuStateChunksIn(spec, gpus, wish.bytes);
  if (plan.chunks > 0) {
    plan.why = "as many as fit into " + FormatBytes(wish.bytes) + " of each GPU";
    return plan;
  }

  client::JobSpec one = spec;
  one.states_on_gpu = 1;
  const uint64_t least = GpuStateBytesOfOne(one, gpus);
  return Status(ErrorId::kConfigBadValue, "--gpu-states " + std::to_string(wish.bytes) +
                                              " has no room for the states of one chunk")
      .Where("--gpu-states")
      .Why("those of the first one take " + FormatBytes(least))
      .Fix("give at least --gpu-states " + std::to_string(least) +
           ", a smaller --chunk-size, or --gpu-states off");
}

}  // namespace

Result<GpuStatesWish> ParseGpuStatesWish(const std::string& text) {
  using Kind = GpuStatesWish::Kind;
  if (text == "off") return GpuStatesWish{Kind::kOff, 0};
  if (text == "auto") return GpuStatesWish{Kind::kAuto, 0};
  const Result<uint64_t> bytes = ParseSize(text);
  if (bytes.ok()) return GpuStatesWish{Kind::kSize, bytes.value()};
  return Status(ErrorId::kConfigBadValue, bytes.status().what())
      .Where("--gpu-states")
      .Fix("give off, auto, or a size like 4GiB");
}

uint64_t GpuStateBytesOfOne(const client::JobSpec& spec, uint32_t gpus) {
  std::vector<uint64_t> bytes(gpus, 0);
  for (Rank rank = 0; rank < spec.world; ++rank)
    bytes[rank % gpus] += client::GpuShareBytes(spec, rank);
  return *std::max_element(bytes.begin(), bytes.end());
}

uint32_t GpuStateChunksIn(client::JobSpec spec, uint32_t gpus, uint64_t bytes) {
  uint32_t fits = 0, too_many = static_cast<uint32_t>(spec.chunks.size()) + 1;
  while (too_many - fits > 1) {
    spec.states_on_gpu = fits + (too_many - fits) / 2;
    (GpuStateBytesOfOne(spec, gpus) <= bytes ? fits : too_many) = spec.states_on_gpu;
  }
  return fits;
}

Result<GpuStatesPlan> PlanGpuStates(const GpuStatesWish& wish, const ChunkLayout& layout,
                                    const client::JobSpec& spec, const GpuStatesPlace& place) {
  using Kind = GpuStatesWish::Kind;
  GpuStatesPlan plan;
  const Hindrance hindrance = HindranceOf(spec, place);

  if (wish.kind == Kind::kSize) {
    if (!hindrance.why.empty()) {
      return Status(ErrorId::kUsageError, "states cannot lie on GPUs: " + hindrance.why)
          .Where("--gpu-states")
          .Fix(hindrance.fix);
    }

    TP_ASSIGN_OR_RETURN(plan, InSize(wish, spec, place.gpus));
  } else if (place.gpus == 0) {
    return plan;
  } else if (wish.kind == Kind::kOff) {
    plan.why = "--gpu-states off";
  } else if (!hindrance.why.empty()) {
    plan.why = hindrance.why;
  } else {
    // No step has been measured that could tell the benefit of placing more.
    plan.chunks = AlwaysResident(layout);
    plan.may_stay_on_host = true;
    plan.why = plan.chunks > 0 ? "what is always resident, and more by --gpu-states SIZE alone "
                                 "while no step has been measured"
                               : "no chunk is always resident";
  }

  if (plan.chunks == 0) return plan;
  client::JobSpec placed = spec;
  placed.states_on_gpu = plan.chunks;
  plan.gpu_bytes = GpuStateBytesOfOne(placed, place.gpus);
  return plan;
}

bool IsAboutGpuStates(ErrorId refusal) {
  switch (refusal) {
    case ErrorId::kJobSpecBad:       // a release without states on GPUs, or ranks without one
    case ErrorId::kJobMismatch:      // the job exists, with its states on the host
    case ErrorId::kCudaUnavailable:  // no Adam kernel, or memory that ends with memserver
    case ErrorId::kCudaFailed:
    case ErrorId::kDeviceMemoryShort:  // no room for them
    case ErrorId::kTooManySessions: return true;
    default: return false;
  }
}

}  // namespace tidepool::trainer
