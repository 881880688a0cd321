// RunStepLog: logs a run's steps during training (--durable-steps): starts the process that writes
// the log, and notices when it has ended.
//
// One thread (the trainer's main thread), rank 0; torch-free. This process never accesses the
// folder of the log, because its file system may not answer. A log that fails is reported, and
// training goes on with checkpoints alone; the next checkpoint begins another log.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "client/checkpoint/safe_steps.h"
#include "client/chunk_service.h"
#include "client/job_spec.h"
#include "trainer/launch/child_process.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Check of what a log's gradients are for: parameters, their types, and the numbers of the rule.
uint32_t StepLogModelOf(const client::JobSpec& spec);
// Bytes of each parameter's gradient in its slot, by ParameterId.
std::vector<uint64_t> GradientBytesOf(const client::JobSpec& spec);

class RunStepLog {
 public:
  // Longer than its process waits for a drive before it gives the log up.
  static constexpr int64_t kSafeWaitNs = 90 * kNsPerSecond;
  struct Parts {
    const CheckpointOptions& options;  // as all below, outlives the object
    const client::JobSpec& spec;
    Clock* clock = nullptr;
    std::function<void(const std::string& line)> say;
    std::string program = {};  // the writing program; empty: FindProgramBeside finds it
  };
  explicit RunStepLog(Parts parts) : parts_(std::move(parts)) {}
  // The writing process goes on alone, and ends when all is logged.
  ~RunStepLog();
  RunStepLog(const RunStepLog&) = delete;
  RunStepLog& operator=(const RunStepLog&) = delete;

  // Begins to log the steps behind the sealed `version`, unless a log goes on. `previous`: the run
  // whose log ends there; 0: none, so that a checkpoint of this version has to follow. Errors:
  // kFileUnreadable (no program), kAbiMismatch, kSaveFailed, what ended the session.
  Status Begin(Version version, uint64_t previous, client::ChunkService* service);
  // Call behind each step. Reports a log that has ended.
  void Look(Version version, client::ChunkService* service);
  // The run that a checkpoint begun now belongs to; 0: no log goes on.
  uint64_t run() const { return writer_ ? run_ : 0; }
  // True if steps are to be logged, and no checkpoint that they could follow was begun.
  bool wants_base() const { return wants_base_; }
  // True if a power cut leaves this sealed step: it is in the log and on the drive, and so is the
  // checkpoint that the log follows. `waits`: first waits for the log, at most kSafeWaitNs, unless
  // that checkpoint is not whole yet, or the log has ended.
  bool IsSafe(Version version, bool waits, client::ChunkService* service);
  // Call when the session has ended: waits a while until the last steps are safe.
  void AwaitEnd();

 private:
  Status Start(Version version, uint64_t previous, client::ChunkService* service);
  void Drop();

  const Parts parts_;
  std::optional<ChildProcess> writer_;
  std::optional<client::SafeSteps> safe_;  // while there is a writer
  uint64_t run_ = 0;
  bool wants_base_ = true;
  bool follows_log_ = false;  // another run's, so that the checkpoint is whole
};

}  // namespace tidepool::trainer
