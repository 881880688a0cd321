// ReplaySteps: makes the steps of a log again: hands each step's summed gradients to the memory
// server, as this rank's shards, and ends the step with its logged record. The server's update then
// has the bits that it had: neither forward nor backward runs.
//
// One thread (the trainer's main thread), before the first pass; all ranks call it with the same
// steps. It uses the rCache memory that ParameterCache uses later. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/checkpoint/step_log.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "client/job_spec.h"

namespace tidepool::trainer {

// Where the steps come from, and where they go.
struct ReplayParts {
  client::ChunkService* service = nullptr;
  const client::JobSpec& spec;
  Rank rank = 0;
  StepLog* log = nullptr;
  // Copies into the rCache if the CPU cannot write to it, and returns when it has; null: it can.
  std::function<Status(uint64_t rcache_offset, std::span<const std::byte> bytes)> copy_in = nullptr;
};
// Errors: kRcacheTooSmall (a shard's gradient does not fit), kDataBad (a step came out otherwise
// than it was logged), those of StepLog::Read and of the server.
Status ReplaySteps(const ReplayParts& parts);

}  // namespace tidepool::trainer
