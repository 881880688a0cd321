// WriteSnapshot: writes the states of a job that memserver holds as a checkpoint, by a process of
// the caller: `memctl snapshot`, of a job that trains or is kept without ranks.
//
// One thread; blocks until the checkpoint is on the drive. What only the trainer knows (the model's
// configuration, its tokenizer, the hash of the base of adapters) comes from a directory that has
// it: the one that is named, else the folder's newest whole checkpoint of the same run.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::client {

// What is written, and where.
struct SnapshotTask {
  std::string socket_dir, job;  // of memserver; number or name
  std::string folder;           // of checkpoints; created if it does not exist
  std::string like;             // a saved model or checkpoint of the same run; empty: none is named
  uint64_t keep = 0;            // whole checkpoints that stay in the folder; 0: all
  Clock* clock = nullptr;       // outlives the call
};
// The result.
struct Snapshot {
  std::string path;
  uint64_t version = 0;
  bool described = false;  // it has config.json, so that it is a saved model as well
};
// Errors: those of AskForStates and WriteStates; kUsageError (the folder belongs to a run that logs
// its steps); kSaveFailed (adapters, and nothing names their base); kFileUnreadable.
Result<Snapshot> WriteSnapshot(const SnapshotTask& task);

}  // namespace tidepool::client
