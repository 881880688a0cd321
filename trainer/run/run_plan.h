// RunPlan: what a run will be, known before anything is started: shape, layout, rCache, job, memory
// by tier. What `trainer estimate` and `trainer run --dry-run` show.
//
// Any thread; torch-free; pure but for reading the heads of the saved model that a run begins with,
// or that adapters are trained over.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "client/job_spec.h"
#include "device/cuda/cuda_device.h"
#include "trainer/inputs/base_names.h"
#include "trainer/inputs/frozen_base.h"
#include "trainer/inputs/saved_model.h"
#include "trainer/advice/gpu_states.h"
#include "trainer/run/job.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"
#include "trainer/plan/estimate.h"
#include "trainer/pipeline/stage_plan.h"
#include "trainer/advice/plan_choice.h"
#include "trainer/advice/rcache_choice.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

struct RunPlan {
  GptShape shape;
  LoraShape lora;  // on: adapters are trained, the rest is frozen
  ChunkLayout layout;
  RcachePlan rcache;
  client::JobSpec spec;
  MemoryEstimate memory;
  GpuStatesPlan gpu_states;            // as PlaceGpuStates decided
  std::optional<RcacheChoice> choice;  // how --rcache auto came to the rCache
  std::optional<PlanChoice> way;       // what --plan came to
  std::optional<StagePlan> stages;     // with --pipeline
  Exchange exchange = Exchange::kSharded;
  uint32_t rank = 0;  // that it is seen from
  // The ranks that share this rank's experts, ascending; empty where it has all of them.
  std::vector<Rank> expert_ranks = {};
  std::shared_ptr<const FrozenBase> base;  // null: no --base was given
  std::shared_ptr<const SavedModel> from;  // null: no --from was given
};

// What memserver has of a GPU: its context, and what the driver keeps there of the registered pool.
struct ServerContext {
  uint64_t bytes = 0;   // as that memserver measured it; 0: not known
  std::string why_not;  // then
};

// What one GPU that `sharers` ranks use has to hold, beside activations.
struct GpuEstimate {
  // rCache with resident chunks, and the block that stands in after a failure.
  uint64_t rank_bytes = 0;
  uint32_t sharers = 1;
  // Optimizer states of the ranks that share it, which memserver takes.
  uint64_t states_bytes = 0;
  std::optional<device::DeviceBytes> now;  // of the GPU of this machine, with a context on it
  ServerContext server = {};

  // That are known.
  uint64_t bytes() const { return rank_bytes * sharers + states_bytes + server.bytes; }
};

// `world` ranks, seen from `rank`. With adapters but no base (as an estimate may be asked for) the
// shape is the preset's.
// Errors: kUsageError (preset, experts, dtype, context, adapters), kConfigBadValue (sizes),
// kParameterTooLarge, kRcacheTooSmall; where there is a base, those of ReadModelConfig and
// FrozenBase::Open; with --from, those of SavedModel::Open.
Result<RunPlan> MakeRunPlan(const RunOptions& options, uint32_t world, Rank rank,
                            const std::string& job);
// The same for a shape that is no preset.
Result<RunPlan> MakeRunPlan(const GptShape& shape, const RunOptions& options, uint32_t world,
                            Rank rank, const std::string& job);

// Decides how many chunks have their states on GPUs, and writes it into the specification. `gpus`:
// that the ranks are spread over; 0: the run is on the host. Errors: as PlanGpuStates,
// ParseGpuStatesWish.
Status PlaceGpuStates(const MemoryOptions& memory, uint32_t gpus, RunPlan* plan);

// Names the frozen chunks in the specification by their content, which takes a pass over the base
// where `names` does not remember it. Errors: kUsageError (adapters without a base),
// kSafetensorsBad.
Status NameFrozenChunks(RunPlan* plan, BaseNames* names = nullptr);

}  // namespace tidepool::trainer
