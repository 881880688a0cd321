// A training job without a model: weights, gradients and their hash are plain arithmetic, so that a
// whole run takes milliseconds and every run of the same options ends with the same bits. Used by
// thin_trainer (a process) and by tests that run ranks as threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/formats/optimizer.h"
#include "base/status.h"
#include "client/mem_client.h"
#include "shm/spec/job_spec.h"
#include "tests/process/rig/thin_blocks.h"

namespace tidepool::testing {

struct ThinOptions {
  std::string socket_dir;
  std::string name = "thin";
  uint32_t world = 1;
  Rank rank = 0;
  uint64_t steps = 5;
  uint32_t chunks = 4;
  uint64_t chunk_elements = 4096;  // a multiple of 16 x world
  uint32_t micro_batches = 1;
  uint32_t frozen_chunks = 0;   // of chunk_elements each; each step looks at one of them
  uint64_t frozen_seed = 1;     // what is in them
  uint32_t states_on_gpu = 0;   // chunks, from the first on
  bool frozen_wrong = false;    // other bytes are put than those that are named
  bool frozen_written = false;  // tries to write to one that is there, which is to be refused
  DType dtype = DType::kF32;
  OptimizerSpec optimizer = {};
  int64_t pause_ns = 0;  // after each step
  int64_t wait_timeout_ns = 30 * int64_t{1000000000};
  std::string save_dir;  // empty: nothing is saved
  // For a server that is being started: a cold disk takes its time.
  int64_t connect_timeout_ns = 30 * int64_t{1000000000};
  // How long a vanished server is waited for.
  int64_t server_timeout_ns = 0;
  // How long a job without room waits for some.
  int64_t queue_timeout_ns = 0;
  // Told when a wait for the server or for room begins or ends.
  std::function<void(const std::string& line)> on_wait;
  // A rank that is taken, or a peer that dies, is waited for: the run goes on from the last sealed
  // step.
  bool persistent = false;
  // When all steps are done, the rank stays attached for as long as this says so. Empty: not at
  // all.
  std::function<bool()> stays;
  // Called with the hash of the final weights, before the rank detaches or stays.
  std::function<void(uint64_t hash)> on_hash;
  // Called with the client after each sealed step; tests look at things here.
  std::function<void(uint64_t step)> after_step;
  // Called with the norm of each step's gradients.
  std::function<void(uint64_t step, double grad_norm)> on_norm;
  // Opens the GPU whose memory the rank brings as its rCache; none: it lies on the host.
  std::function<Result<ThinGpu>()> gpu;
  // Called with the bytes of frozen chunks that this rank has put, when all of them are there.
  std::function<void(uint64_t bytes)> on_frozen;
};

struct ThinResult {
  uint64_t hash = 0;           // of this rank's final weights
  uint64_t first_version = 0;  // at attach: 0 for a new job
  double last_grad_norm = 0;
};

shm::JobSpec SpecOf(const ThinOptions& options);
std::vector<std::byte> FrozenContent(const ThinOptions& options, size_t index);
// Attaches, trains until `steps` steps are sealed, hashes the weights, detaches.
Result<ThinResult> RunThinJob(const ThinOptions& options);

}  // namespace tidepool::testing
