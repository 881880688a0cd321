// GpuStates: for how many of a job's first chunks the optimizer's states are to lie on the ranks'
// GPUs: what --gpu-states asks for, as far as possible.
//
// Any thread; pure functions, torch-free. Bytes are the server's own count (client::GpuShareBytes:
// two slots a chunk, padding, staging), so the result never exceeds a given size. Ranks share GPUs
// as in trainer/advice/device_place.h: rank r uses GPU r modulo `gpus`.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "client/job_spec.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// What --gpu-states says.
struct GpuStatesWish {
  enum class Kind : uint8_t { kOff, kAuto, kSize };
  Kind kind = Kind::kAuto;
  uint64_t bytes = 0;  // kSize: on each GPU, at most
};
// "off", "auto" or a size. Errors: kConfigBadValue.
Result<GpuStatesWish> ParseGpuStatesWish(const std::string& text);

// Bytes of states on the GPU that has most of them, with the spec's states_on_gpu. Requires gpus >
// 0.
uint64_t GpuStateBytesOfOne(const client::JobSpec& spec, uint32_t gpus);
// The largest number of first chunks whose states take at most `bytes` on each GPU. Ignores the
// spec's own states_on_gpu.
uint32_t GpuStateChunksIn(client::JobSpec spec, uint32_t gpus, uint64_t bytes);

// What is asked of the server.
struct GpuStatesPlan {
  uint32_t chunks = 0;
  uint64_t gpu_bytes = 0;         // on the GPU that has most
  bool may_stay_on_host = false;  // auto: if a server refuses them, ask it again without
  // Why this number, for the start lines; empty: there was nothing to decide (a run on the host).
  std::string why;
};

// What decides the place of the states.
struct GpuStatesPlace {
  uint32_t gpus = 0;                    // GPUs that ranks are spread over; 0: a run on the host
  const char* why_no_kernel = nullptr;  // null: this build has the kernel that updates them there
};

// auto: the states of the chunks that are always resident, whose parameters need no other room in
// the rCache. Placing more depends on the memory that a step leaves (PatrickStar, section 8: the
// margin), which is known only after one was measured; no run does that yet. Where something
// prevents it (a rule other than Adam and AdamW, states other than fp32, no kernel), all states
// stay on the host, and `why` says so. Errors, only for a size: kUsageError (what prevents it; a
// run on the host), kConfigBadValue (not one chunk fits; the smallest size that would do).
Result<GpuStatesPlan> PlanGpuStates(const GpuStatesWish& wish, const ChunkLayout& layout,
                                    const client::JobSpec& spec, const GpuStatesPlace& place);

// True when a server that refused a job with this error may take it with its states on the host.
bool IsAboutGpuStates(ErrorId refusal);

}  // namespace tidepool::trainer
