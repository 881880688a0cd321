// WriteStates: the process that writes a checkpoint as the job's user, from the memory that
// memserver fills (shm/state_stream.h); so only this process waits for its file system.
//
// One thread, a process of its own (the program tidepool-checkpoint), which outlives the trainer.
// It also needs files from the trainer, in a directory: the plan, and files that become part of the
// checkpoint. Lines of the plan, fields separated by one space:
//
//   tidepool-plan 1
//   weights FILE               kMasterFile or kAdaptersFile
//   metadata KEY VALUE         metadata of the files; any number of lines
//   moments MASK               1: each parameter has a first moment; 2: a second; 3: both
//   parameter DTYPE DIMS NAME  in order of ParameterId; DTYPE of its moments, F32, BF16 or I8 (with
//                              scales; the second is U8); DIMS as 2,3, or - for a scalar
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "shm/spec/job_spec.h"

namespace tidepool::client {

inline constexpr const char* kPlanFile = "plan";

// A parameter of the job.
struct PlannedParameter {
  std::string name;
  std::string moment_dtype = "F32";
  std::vector<uint64_t> dims;
};
// The content of the checkpoint.
struct StatesPlan {
  std::string weights = kMasterFile;
  CheckpointWriter::Metadata metadata = {};
  uint32_t moments = 0;  // a bit mask
  std::vector<PlannedParameter> parameters;
  // True if this plane (shm::kPutMaster, ...) of the plan's parameter is written.
  bool Has(uint32_t parameter, uint32_t plane) const;
};
// The text of the file.
std::string TextOf(const StatesPlan& plan);
// Errors: kDataBad.
Result<StatesPlan> ReadPlan(const std::string& text);
// The safetensors type of first moments in this form.
const char* MomentTypeOf(StateForm form);
// What a checkpoint of this job holds. `base`: of adapters, the hash of their base's file, empty if
// it is not known; nothing for a whole model.
StatesPlan PlanOf(const shm::JobSpec& spec, const std::optional<std::string>& base);

// Source and destination.
struct WriteTask {
  UniqueFd memory;         // made by memserver
  std::string folder;      // of checkpoints; created if it does not exist
  std::string name;        // of this checkpoint
  std::string staged;      // directory with the plan and further files; removed
  uint64_t keep = 0;       // checkpoints in the folder, including this one; 0: all
  Clock* clock = nullptr;  // outlives the call
  FileFault fault = nullptr;
  // Replaces `staged`: the plan, and the further files with their names.
  std::optional<StatesPlan> plan = {};
  std::vector<std::pair<std::string, std::string>> files = {};
  // Called while nothing comes; an error ends the wait. Null: no such call.
  std::function<Status()> look = nullptr;
};
// Blocks until the checkpoint is complete. Removes a directory that does not become one. Errors:
// kSaveFailed, kDataBad (the plan, or pieces that do not match it), those of shm::Segment::Map.
Status WriteStates(WriteTask task);

}  // namespace tidepool::client
