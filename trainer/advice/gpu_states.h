// GpuStates: of how many of a job's first chunks the optimizer's states are to lie on the ranks'
// GPUs: what --gpu-states asks for, as far as it can be done.
//
// Any thread; pure functions, torch-free. Bytes are the server's own count (client::GpuShareBytes:
// two slots a chunk, padding, staging), so a size is never exceeded by what it makes. Which ranks
// share a GPU is as trainer/advice/device_place.h has it: rank r uses GPU r modulo `gpus`.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "client/job_spec.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

struct GpuStatesWish {
  enum class Kind : uint8_t { kOff, kAuto, kSize };
  Kind kind = Kind::kAuto;
  uint64_t bytes = 0;  // kSize: of each GPU, at most
};
// "off", "auto" or a size. Errors: kConfigBadValue.
Result<GpuStatesWish> ParseGpuStatesWish(const std::string& text);

// Bytes of states on the GPU that has most of them, with the spec's states_on_gpu. Requires gpus >
// 0.
uint64_t GpuStateBytesOfOne(const client::JobSpec& spec, uint32_t gpus);
// The most first chunks whose states take at most `bytes` of each GPU. Whatever the spec says of
// them is not looked at.
uint32_t GpuStateChunksIn(client::JobSpec spec, uint32_t gpus, uint64_t bytes);

struct GpuStatesPlan {
  uint32_t chunks = 0;
  uint64_t gpu_bytes = 0;         // of the GPU that has most
  bool may_stay_on_host = false;  // auto: a server that refuses them is asked again without
  // Of this number, for the start lines; empty: nothing was to be decided (a run on the host)
  std::string why;
};

// What the place of the states is decided by.
struct GpuStatesPlace {
  uint32_t gpus = 0;                    // that ranks are spread over; 0: the run is on the host
  const char* why_no_kernel = nullptr;  // null: this build has the kernel that updates them there
};

// auto: the chunks that are always resident, whose parameters need no room of the rCache either.
// More of them is a matter of the memory that a step leaves (PatrickStar, section 8: the margin),
// which is known only when one has been measured, and no run places states behind that yet. What
// hinders it (another rule than Adam and AdamW, other states than fp32, no kernel) leaves all
// states on the host, and is told. Errors, of a size alone: kUsageError (what hinders it; a run on
// the host), kConfigBadValue (not one chunk fits; the smallest that would).
Result<GpuStatesPlan> PlanGpuStates(const GpuStatesWish& wish, const ChunkLayout& layout,
                                    const client::JobSpec& spec, const GpuStatesPlace& place);

// Whether a server that refused a job with this error may take it with its states on the host.
bool IsAboutGpuStates(ErrorId refusal);

}  // namespace tidepool::trainer
