// RunPlan: a run's properties, known before anything is started: shape, layout, rCache, job, memory
// by tier. `trainer estimate` and `trainer run --dry-run` show it.
//
// Any thread; torch-free; pure except for reading the headers of the saved model of --from or
// --base.
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
  LoraShape lora;  // on: trains adapters, the rest is frozen
  ChunkLayout layout;
  RcachePlan rcache;
  client::JobSpec spec;
  MemoryEstimate memory;
  GpuStatesPlan gpu_states;            // set by PlaceGpuStates
  std::optional<RcacheChoice> choice;  // how --rcache auto chose the rCache
  std::optional<PlanChoice> way;       // the result of --plan
  std::optional<StagePlan> stages;     // with --pipeline
  Exchange exchange = Exchange::kSharded;
  uint32_t rank = 0;  // the rank whose view this is
  // The ranks that share a block's experts with this one, for each such number of ranks above 1,
  // ascending. Empty: each rank has all experts.
  std::vector<std::vector<Rank>> expert_groups = {};
  std::shared_ptr<const FrozenBase> base;  // null: no --base was given
  std::shared_ptr<const SavedModel> from;  // null: no --from was given
};

// memserver's memory on a GPU: its context, and the driver's page tables for the registered pool.
struct ServerContext {
  uint64_t bytes = 0;   // as measured by that memserver; 0: unknown
  std::string why_not;  // why bytes is unknown
};

// The memory needed on one GPU that `sharers` ranks use, without activations.
struct GpuEstimate {
  // rCache with resident chunks, and the fallback block used after a failure.
  uint64_t rank_bytes = 0;
  uint32_t sharers = 1;
  // Optimizer states of the ranks that share the GPU, allocated by memserver.
  uint64_t states_bytes = 0;
  std::optional<device::DeviceBytes> now;  // current use of this machine's GPU, a context included
  ServerContext server = {};

  // The total of the known parts.
  uint64_t bytes() const { return rank_bytes * sharers + states_bytes + server.bytes; }
};

// Plan for `world` ranks, seen from `rank`. With adapters but no base (possible for an estimate)
// the shape is the preset's. Errors: kUsageError (preset, experts, dtype, context, adapters),
// kConfigBadValue (sizes), kParameterTooLarge, kRcacheTooSmall; with a base, those of
// ReadModelConfig and FrozenBase::Open; with --from, those of SavedModel::Open.
Result<RunPlan> MakeRunPlan(const RunOptions& options, uint32_t world, Rank rank,
                            const std::string& job);
// The same for a shape that is not a preset.
Result<RunPlan> MakeRunPlan(const GptShape& shape, const RunOptions& options, uint32_t world,
                            Rank rank, const std::string& job);

// Decides how many chunks have their states on GPUs, and writes that to the specification. `gpus`:
// the number of GPUs that the ranks use; 0: the run is on the host. Errors: as PlanGpuStates,
// ParseGpuStatesWish.
Status PlaceGpuStates(const MemoryOptions& memory, uint32_t gpus, RunPlan* plan);

// Names the frozen chunks in the specification by their content hash, which reads the whole base
// unless `names` has it cached. Errors: kUsageError (adapters without a base), kSafetensorsBad.
Status NameFrozenChunks(RunPlan* plan, BaseNames* names = nullptr);

}  // namespace tidepool::trainer
