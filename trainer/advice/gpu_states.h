// GpuStates: for how many of a job's leading chunks the optimizer states should be on the ranks'
// GPUs: --gpu-states, as far as possible.
//
// Any thread; pure functions, torch-free. Bytes are counted as the server counts them
// (client::GpuShareBytes: two slots per chunk, padding, staging), so the result never exceeds a
// given size. Ranks share GPUs as in trainer/advice/device_place.h: rank r uses GPU r modulo
// `gpus`.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "client/job_spec.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// A parsed --gpu-states.
struct GpuStatesWish {
  enum class Kind : uint8_t { kOff, kAuto, kSize };
  Kind kind = Kind::kAuto;
  uint64_t bytes = 0;  // kSize: at most this much on each GPU
};
// Parses "off", "auto" or a size. Errors: kConfigBadValue.
Result<GpuStatesWish> ParseGpuStatesWish(const std::string& text);

// Bytes of states on the GPU with the most, by the spec's states_on_gpu. Requires gpus > 0.
uint64_t GpuStateBytesOfOne(const client::JobSpec& spec, uint32_t gpus);
// The most leading chunks whose states take at most `bytes` on each GPU. Ignores the spec's own
// states_on_gpu.
uint32_t GpuStateChunksIn(client::JobSpec spec, uint32_t gpus, uint64_t bytes);

// The request to the server.
struct GpuStatesPlan {
  uint32_t chunks = 0;
  uint64_t gpu_bytes = 0;         // on the GPU with the most
  bool may_stay_on_host = false;  // auto: if the server refuses them, retry without
  // Reason for this number, for the banner; empty: no choice (a run on the host).
  std::string why;
};

// Inputs of the placement of states.
struct GpuStatesPlace {
  uint32_t gpus = 0;                    // number of GPUs used by the ranks; 0: a run on the host
  const char* why_no_kernel = nullptr;  // null: this build has the update kernel
};

// auto: the states of the always resident chunks, whose parameters need no other space in the
// rCache. Placing more depends on the memory that a step leaves free (PatrickStar, section 8: the
// margin), which is known only after measuring a step; no run does that yet. If states cannot be on
// GPUs (a rule other than Adam and AdamW, states other than fp32, no kernel), all stay on the host,
// and `why` says so. Errors, only for a size: kUsageError (the obstacle; or a run on the host),
// kConfigBadValue (no chunk fits; names the smallest size that would do).
Result<GpuStatesPlan> PlanGpuStates(const GpuStatesWish& wish, const ChunkLayout& layout,
                                    const client::JobSpec& spec, const GpuStatesPlace& place);

// True if a server that refused a job with this error may accept it with all states on the host.
bool IsAboutGpuStates(ErrorId refusal);

}  // namespace tidepool::trainer
