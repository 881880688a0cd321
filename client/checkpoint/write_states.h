// WriteStates: the process that writes a checkpoint as the job's user, from the memory that
// memserver fills (shm/state_stream.h); so only this process waits for its file system.
//
// One thread, a process of its own (the program tidepool-checkpoint), which outlives the trainer.
// It also needs what only the trainer knows, the plan: a file in the directory that becomes the
// checkpoint.
// Its lines, fields separated by one space:
//
//   tidepool-plan 1
//   moments MASK               1: each parameter has a first moment; 2: a second; 3: both
//   parameter DTYPE DIMS NAME  in order of ParameterId; DTYPE of its moments, F32 or BF16; DIMS as
//                              2,3, or - for a scalar
#pragma once

#include <string>
#include <vector>

#include "base/checkpoint/checkpoint_files.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

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
  uint32_t moments = 0;  // a bit mask
  std::vector<PlannedParameter> parameters;
  // Whether a plane (shm::kPutMaster, ...) of each parameter is written.
  bool Has(uint32_t plane) const {
    return plane <= 2 && (plane == 0 || (moments >> (plane - 1) & 1));
  }
};
// The text of the file.
std::string TextOf(const StatesPlan& plan);
// Errors: kDataBad.
Result<StatesPlan> ReadPlan(const std::string& text);

// Source and destination.
struct WriteTask {
  UniqueFd memory;         // made by memserver
  std::string partial;     // contains the plan, which is removed
  uint64_t keep = 0;       // checkpoints in the folder, including this one; 0: all
  Clock* clock = nullptr;  // outlives the call
  FileFault fault = nullptr;
};
// Blocks until the checkpoint is complete. Removes a directory that does not become one. Errors:
// kSaveFailed, kDataBad (the plan, or pieces that do not match it), those of shm::Segment::Map.
Status WriteStates(WriteTask task);

}  // namespace tidepool::client
