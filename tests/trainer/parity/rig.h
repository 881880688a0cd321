// A rig that trains the same small GPT twice: through a whole memory server with ranks as threads
// of this process, and in plain LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memserver/server.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/plan/replay.h"
#include "trainer/plan/traffic.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// 8 layers x 32: about 25 chunks of 16 KiB, so that small rCaches have something to evict.
GptShape DeepShape();

struct RigOptions {
  GptShape shape = DeepShape();
  RunOptions run;  // steps, dtype, rcache, chunk_size, clip, ...
  uint32_t world = 1;
  uint32_t adam_threads = 1;
  optim::IsaLevel isa = optim::BestIsa();
  optim::Tuning tuning = {};
  bool separate_while_recording = false;
  double first_loss_scale = 65536;  // fp16
  bool evaluate_first = false;      // once, before the first step
  bool leaves_out = true;           // experts without tokens, where an order is known
  bool open_steps = false;          // each rank runs forward and backward itself
  // A rank whose gradients are spoilt before they are handed in.
  std::optional<uint32_t> corrupted_rank = std::nullopt;
};

// A run of 30 steps with clipping, batch 6 x 16 tokens.
RigOptions DefaultRig();
// Writes a base for adapters: the model with which a run of these options would begin.
void WriteBase(const std::string& path, const RigOptions& options);

struct RigResult {
  std::vector<double> losses, grad_norms;
  std::vector<bool> skipped;
  std::map<std::string, std::vector<float>> weights;  // fp32, by name, of what is trained
  // With a base: after the last step, its chunks at the server hold what the file says.
  bool base_unchanged = false;
  // Traffic of rank 0, by step; planned is zero while recording.
  std::vector<StepTraffic> planned, moved;
  // The same by data group, and what ranks exchange.
  std::vector<std::vector<GroupTraffic>> planned_groups, moved_groups;
  // Rank 0: chunks fetched, by step; the order of the last training step, which chunks need a block
  // in it, and how many there were.
  std::vector<uint64_t> fetches;
  AccessSchedule order;
  ChunkLayout layout;
  // Rank 0, by step: how often one of its experts was called used, summed over blocks and
  // micro-batches; and how many gradients were submitted as zeros without bytes.
  std::vector<uint64_t> used_experts, zeros;
  std::vector<bool> evictable;
  uint64_t blocks = 0;
};

// Trains through a server. The error is that of the first rank that failed.
Result<RigResult> TryThroughServer(const RigOptions& options);
// The same, and expects success (a failure is a failure of the calling test).
RigResult TrainThroughServer(const RigOptions& options);
// The same run in plain LibTorch: torch::optim::AdamW, clip_grad_norm_, one process, everything
// resident.
RigResult TrainPlain(const RigOptions& options);

// Largest |a - b| over all weights; fails when the names differ.
double LargestDifference(const RigResult& a, const RigResult& b);
// True when all weights have the same bits.
bool SameBits(const RigResult& a, const RigResult& b);

}  // namespace tidepool::trainer
