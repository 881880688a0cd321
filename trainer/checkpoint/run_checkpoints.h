// RunCheckpoints: the checkpoints of a run while it trains: when one begins, and the process that
// writes it.
//
// One thread (the trainer's main thread), rank 0; torch-free. A step waits for a checkpoint only
// where the one before is still being written: while memserver copies, and then for 10 s at most;
// after these the checkpoint of this step is left out. One that fails is said, and training goes
// on.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "client/job_spec.h"
#include "trainer/launch/child_process.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

class RunCheckpoints {
 public:
  // `describe` writes the model's configuration and tokenizer into a directory. `say` is for lines
  // that people read. All outlive the object.
  struct Parts {
    const CheckpointOptions& options;
    const client::JobSpec& spec;
    Clock* clock = nullptr;
    std::function<Status(const std::string& directory)> describe;
    std::function<void(const std::string& line)> say;
  };
  explicit RunCheckpoints(Parts parts) : parts_(std::move(parts)) {}

  // The step that makes `version` was sealed. Errors: what ended the session.
  Status After(Version version, client::ChunkService* service);
  // Waits until the last one is written, or will not be.
  void Finish();

 private:
  Status Begin(Version version, client::ChunkService* service);
  // False: the last one is still being written.
  bool AwaitWriter(client::ChunkService* service);
  void Ended(int code);

  Parts parts_;
  std::optional<ChildProcess> writer_;
  Version writing_ = 0;
};

}  // namespace tidepool::trainer
