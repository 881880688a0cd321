// DeviceMemory: who holds the memory of a GPU, and which changes would make a run fit that has used
// it up.
//
// Any thread; pure functions, torch-free. Predictions start from what was in use when the memory
// ran out: what the step would have needed after that point is not in them. Activations are assumed
// to grow with sequences and tokens, as they do with flash attention.
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

// How the bytes of one GPU are shared.
struct DeviceShares {
  uint64_t total = 0, free = 0;
  uint64_t rcache = 0, resident = 0;  // of this rank: blocks, and always resident chunks
  // Parameters outside the rCache: the block that stands in for one after a failure.
  uint64_t outside = 0;
  // States of the optimizer, which memserver holds there for the ranks of this run.
  uint64_t states = 0;
  uint64_t allocated = 0;  // tensors of LibTorch at their largest, `outside` among them
  uint64_t reserved = 0;   // what LibTorch holds for tensors, in use or not

  // What LibTorch uses of its memory beside what is known, and what it keeps unused.
  uint64_t activations() const { return allocated - std::min(allocated, outside); }
  uint64_t unused() const { return reserved - std::min(reserved, allocated); }
  // Contexts of this process and of memserver, code of kernels, other processes.
  uint64_t framework() const {
    const uint64_t known = free + rcache + resident + states + reserved;
    return total - std::min(total, known);
  }
};

// When the memory ran out.
enum class ShortAt : uint8_t {
  kRcache,  // there was no room for the rCache
  kBuild,   // the rCache is there; what the engine, the base or the weights needed was not
  kStep,
};

// A run that found no room.
struct ShortRun {
  DeviceShares shares;
  uint64_t wanted = 0;  // bytes that found no room; 0: not known
  // Bytes that the order of the run needs, resident chunks included; 0: not known yet.
  uint64_t rcache_smallest = 0;
  ShortAt at = ShortAt::kStep;
  Rank rank = 0;
};

// One change of the command line, alone.
struct MemoryChange {
  std::string flags;
  uint64_t bytes = 0;  // of the GPU in use with it, where the run stopped
};

// Bytes of what stands in for chunks after a failure: as large as the largest
// (trainer/hooks/storage_binding.h).
uint64_t SpareBytes(const ChunkLayout& layout);

// At most three changes that would have fitted, in this order: states on GPUs, rCache, batch,
// checkpointing, offloading, context. Before the first step nobody knows what operators take: then
// rCache, type of the elements, size of the chunks, each weighed by the plan that it leads to.
std::vector<MemoryChange> ChangesThatFit(const ShortRun& run, const RunPlan& plan,
                                         const RunOptions& options);
// `ended` (kDeviceMemoryShort) with the shares and the changes added.
Status ExplainShortage(Status ended, const ShortRun& run, const RunPlan& plan,
                       const RunOptions& options);
// The bytes that LibTorch's error names ("Tried to allocate 2.00 GiB"); 0 where there are none.
uint64_t WantedBytes(const std::string& text);

// `now`: bytes of this machine's GPU after a context was made on it; none: there is no GPU here.
GpuEstimate EstimateGpu(const RunPlan& plan, uint32_t sharers,
                        std::optional<device::DeviceBytes> now, ServerContext server);
// What the memserver that was asked reports about the GPU of this uuid.
ServerContext ServerContextOf(const Result<std::vector<client::GpuView>>& gpus,
                              const std::string& uuid);
std::string DescribeGpu(const GpuEstimate& estimate);

}  // namespace tidepool::trainer
