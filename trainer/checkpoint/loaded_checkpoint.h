// LoadedCheckpoint: a checkpoint that a run goes on behind, opened for reading; and which one that
// is.
//
// Any thread; torch-free.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checkpoint/manifest.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "client/job_spec.h"
#include "trainer/inputs/weights_file.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// In a checkpoint: the note of the run that wrote it.
inline constexpr const char* kNoteFile = "run-note";

// The moments that the job has, as client::Range numbers planes.
std::vector<uint32_t> MomentPlanesOf(const client::JobSpec& spec);

class LoadedCheckpoint {
 public:
  // `verify`: all of it is read first, and every byte compared with its check. Errors:
  // kCheckpointBad (names file and tensor), kFileUnreadable, those of WeightsFile::Open.
  static Result<LoadedCheckpoint> Open(const std::string& path, bool verify);

  const std::string& path() const { return path_; }
  // What the run was known by (trainer/run/resuming/run_note.h); empty: it says nothing.
  const std::string& note() const { return note_; }
  // The step that the states are of.
  client::BeginPoint point() const;
  // All values of a plane of a parameter of the job. Errors: kDataBad (the checkpoint has no such
  // tensor, or one of another shape, or one that the job's form of states would round).
  Status Read(const client::JobSpec& spec, ParameterId id, uint32_t plane,
              std::span<float> values) const;

 private:
  std::string path_, note_;
  CheckpointStep step_;
  std::unique_ptr<const WeightsFile> masters_, moments_;  // no moments: null
};

// The checkpoint that `options` ask for; empty: none. With --resume auto one is taken where the
// folder has a whole one. Errors: kUsageError, kCheckpointBad (--resume latest finds none).
Result<std::string> CheckpointToResume(const RunOptions& options);
// The program that writes them, beside the trainer.
inline constexpr const char* kCheckpointProgram = "tidepool-checkpoint";
// Can the run write checkpoints? Errors: kUsageError; kFileUnreadable, where that program is
// missing.
Status CheckCheckpoints(const RunOptions& options);

}  // namespace tidepool::trainer
