// LoadedCheckpoint: the checkpoint from which a run resumes, opened for reading; and its selection.
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

// Name of the file in a checkpoint with the note of the run that wrote it.
inline constexpr const char* kNoteFile = "run-note";

// The moment planes of the job, numbered as in client::Range, and the planes of their scales if the
// job's states have 8-bit moments.
std::vector<uint32_t> MomentPlanesOf(const client::JobSpec& spec);

class LoadedCheckpoint {
 public:
  // `verify`: first reads everything and checks the checksum of every byte. Errors: kCheckpointBad
  // (names file and tensor), kFileUnreadable, those of WeightsFile::Open.
  static Result<LoadedCheckpoint> Open(const std::string& path, bool verify);

  const std::string& path() const { return path_; }
  // The run note (trainer/run/resuming/run_note.h); empty: none.
  const std::string& note() const { return note_; }
  // The hash of the adapters' base file (kBaseHashKey); empty: not recorded, or no adapters.
  std::string base_hash() const { return masters_->Metadata(kBaseHashKey); }
  // The step of the saved states.
  client::BeginPoint point() const;
  // Reads all values of one plane of a parameter; for 8-bit moments and their scales, the words to
  // put (base/formats/moment_words.h). Errors: kDataBad (the checkpoint has no such tensor, or one
  // of another shape, or values that the job's form of states would round).
  Status Read(const client::JobSpec& spec, ParameterId id, uint32_t plane,
              std::span<float> values) const;

 private:
  Status ReadCodes(const client::ParameterSpec& parameter, uint32_t plane,
                   std::span<float> values) const;

  std::string path_, note_;
  CheckpointStep step_;
  std::unique_ptr<const WeightsFile> masters_, moments_;  // no moments: null
};

// The checkpoint selected by `options`; empty: none. With --resume auto, one is used if the folder
// has a complete one. Errors: kUsageError, kCheckpointBad (--resume latest finds none).
Result<std::string> CheckpointToResume(const RunOptions& options);
// The program that writes checkpoints; installed beside the trainer.
inline constexpr const char* kCheckpointProgram = "tidepool-checkpoint";
// Checks that the run can write checkpoints. Errors: kUsageError; kFileUnreadable if that program
// is missing.
Status CheckCheckpoints(const RunOptions& options);

}  // namespace tidepool::trainer
