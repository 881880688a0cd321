// DeviceMemory: what uses the memory of a GPU, and which changes would make a run fit after it has
// run out.
//
// Any thread; pure functions, torch-free. Predictions start from the use at the moment the memory
// ran out and leave out what the step would have needed afterwards. Activations are assumed to grow
// with sequences and tokens, as they do with flash attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/admin/views.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// The uses of one GPU's memory, in bytes.
struct DeviceShares {
  uint64_t total = 0, free = 0;
  uint64_t rcache = 0, resident = 0;  // of this rank: blocks, and always resident chunks
  // Parameters outside the rCache: the fallback block used after a failure.
  uint64_t outside = 0;
  // Optimizer states that memserver holds there for this run's ranks.
  uint64_t states = 0;
  uint64_t allocated = 0;  // peak of LibTorch's tensors, `outside` included
  uint64_t reserved = 0;   // LibTorch's reserved memory, used or not

  // Activations: LibTorch's use beyond what is known. Below: what it keeps unused.
  uint64_t activations() const { return allocated - std::min(allocated, outside); }
  uint64_t unused() const { return reserved - std::min(reserved, allocated); }
  // Contexts of this process and of memserver, kernel code, other processes.
  uint64_t framework() const {
    const uint64_t known = free + rcache + resident + states + reserved;
    return total - std::min(total, known);
  }
};

// When the memory ran out.
enum class ShortAt : uint8_t {
  kRcache,  // allocating the rCache
  kBuild,   // later: making the engine, the base or the weights
  kStep,
};

// A run that ran out of memory.
struct ShortRun {
  DeviceShares shares;
  uint64_t wanted = 0;  // bytes requested in vain; 0: unknown
  // Bytes that the run's order needs, resident chunks included; 0: not known yet.
  uint64_t rcache_smallest = 0;
  ShortAt at = ShortAt::kStep;
  Rank rank = 0;
};

// One change of the command line.
struct MemoryChange {
  std::string flags;
  uint64_t bytes = 0;  // predicted use of the GPU at the point of failure
};

// Bytes of the fallback block for chunks after a failure: the largest chunk
// (trainer/hooks/storage_binding.h).
uint64_t SpareBytes(const ChunkLayout& layout);

// At most three changes that would have fitted, in this order: states on GPUs, rCache, batch,
// checkpointing, offloading, context. Before the first step the operators' use is unknown; the
// changes are then rCache, element type and chunk size, each judged by its own plan.
std::vector<MemoryChange> ChangesThatFit(const ShortRun& run, const RunPlan& plan,
                                         const RunOptions& options);
// Adds the shares and the changes to `ended` (kDeviceMemoryShort).
Status ExplainShortage(Status ended, const ShortRun& run, const RunPlan& plan,
                       const RunOptions& options);
// The bytes in LibTorch's error ("Tried to allocate 2.00 GiB"); 0 if there are none.
uint64_t WantedBytes(const std::string& text);

// `now`: use of this machine's GPU, a context included; nullopt: no GPU here.
GpuEstimate EstimateGpu(const RunPlan& plan, uint32_t sharers,
                        std::optional<device::DeviceBytes> now, ServerContext server);
// The answer of a memserver about the GPU with this uuid.
ServerContext ServerContextOf(const Result<std::vector<client::GpuView>>& gpus,
                              const std::string& uuid);
std::string DescribeGpu(const GpuEstimate& estimate);

}  // namespace tidepool::trainer
