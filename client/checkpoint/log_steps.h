// LogSteps: the process that logs a run's steps as the job's user, from the memory that memserver
// fills (shm/state_stream.h); so only this process waits for the log's file system.
//
// Two threads of a process of its own (the program tidepool-checkpoint): one appends, one syncs
// what was appended and removes what a whole checkpoint of this run has made needless. Steps that
// come while a sync runs share the next one. The process outlives the trainer, to log what was
// sealed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/checkpoint/checkpoint_files.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::client {

// Source and destination of a log.
struct LogTask {
  UniqueFd memory;          // made by memserver
  std::string folder;       // of the log; made if it does not exist
  std::string checkpoints;  // folder of the run's checkpoints
  uint64_t run = 0;         // see StepLogWriter::Parts, as the next three
  uint64_t previous = 0;
  uint64_t base = 0;
  uint32_t model = 0;
  uint64_t every = 0;  // a segment begins behind each version that this divides; 0: none does
  pid_t trainer = 0;   // 0: unknown
  // Set by a signal: memserver is gone, and nothing more comes. Null: never.
  const std::atomic<bool>* over = nullptr;
  Clock* clock = nullptr;  // outlives the call
  FileFault fault = nullptr;
  // A sync that takes longer ends the log: the drive does not answer.
  int64_t sync_limit_ns = 60 * kNsPerSecond;
};
// Blocks until the run has ended. Errors: kSaveFailed (also if memserver gave the stream up),
// kDataBad (pieces that no memserver gives), those of shm::Segment::Map. What was logged before
// stays.
Status LogSteps(LogTask task);

}  // namespace tidepool::client
