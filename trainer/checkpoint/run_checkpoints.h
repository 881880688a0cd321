// RunCheckpoints: writes a run's checkpoints during training: decides when one begins, and starts
// the process that writes it.
//
// This process never accesses the folder of the checkpoints, because its file system may not
// answer. It puts its own files about the model into a temporary folder under TMPDIR; the writer
// takes them from there.
// One thread (the trainer's main thread), rank 0; torch-free. A step waits only while the previous
// checkpoint is still being written: until memserver has copied it, then at most 10 s; after that
// this step's checkpoint is skipped. A failed checkpoint is reported, and training continues.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "client/job_spec.h"
#include "trainer/checkpoint/run_step_log.h"
#include "trainer/checkpoint/stage_folder.h"
#include "trainer/launch/child_process.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

class RunCheckpoints {
 public:
  // `describe` writes the model's configuration and tokenizer into a directory. `say` prints lines
  // for people. All outlive the object.
  struct Parts {
    const CheckpointOptions& options;
    const client::JobSpec& spec;
    Clock* clock = nullptr;
    std::function<Status(const std::string& directory)> describe;
    std::function<void(const std::string& line)> say;
    // The path of the writing program; empty: FindProgramBeside finds it.
    std::string program = {};
    // Set if the weights are adapters: the hash of their base file (kBaseHashKey), or empty.
    std::optional<std::string> base = {};
    // Logs the steps between checkpoints; null: nobody does.
    RunStepLog* log = nullptr;
  };
  explicit RunCheckpoints(Parts parts) : parts_(std::move(parts)) {}

  // Call when the step that makes `version` was sealed. Errors: what ended the session.
  Status After(Version version, client::ChunkService* service);
  // Begins the checkpoint of the last sealed step, `version`. Errors: kSaveFailed (also if the
  // previous one is still being written), kFileUnreadable (the writing program is missing), what
  // ended the session.
  Status Begin(Version version, client::ChunkService* service);
  // Waits until the last checkpoint is written or has failed. If its stream failed and the writer
  // cannot be killed, abandons the writer after a while. Errors: kSaveFailed.
  Status Finish(client::ChunkService* service);

 private:
  bool IsDue(Version version) const;
  Status BeginLog(const std::string& staged, Version version, client::ChunkService* service);
  Status Start(const StageFolder& stage, Version version, client::ChunkService* service);
  // False: the last checkpoint is still being written.
  bool AwaitWriter(client::ChunkService* service);
  Status Ended(int code);

  Parts parts_;
  std::optional<ChildProcess> writer_;
  Version writing_ = 0;
};

}  // namespace tidepool::trainer
