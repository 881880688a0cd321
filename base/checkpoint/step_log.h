// StepLog: reads the logged steps of a run behind a checkpoint: each step's summed gradients and
// its record, from which the step is made again with the same bits.
//
// One thread an object. A folder holds segments, written by StepLogWriter (step_log_writer.h):
// steps-00000300-<16 hex digits>.log has the steps behind version 300 of the run of these digits.
// A run is the life of one writer; its segments follow each other, and a run that was gone on with
// from a log names the run before.
// After a power cut a segment has what was synced, and any part of what was written behind it.
// The reader takes whole steps only. It ends at the first step that is not whole if that one may
// never have been synced, and names it as damage if it was. Every step says up to which step the
// log was known to be synced then. Bytes come from a disk: any bytes are accepted.
//
//   StepFrame kBegin                    version: the one that the steps follow
//   (StepFrame kGradients, bytes) ...   bytes of consecutive parameters, in the type of their slots
//   StepFrame kStep, LoggedStep         completes the step
//   ...
//   StepFrame kEnd                      by a writer that ended in order
//
// All frames begin at multiples of 8 bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool {

// The file of a checkpoint that names its run's log.
inline constexpr const char* kStepLogFile = "step-log";

// The record of a step.
struct LoggedStep {
  uint64_t version = 0;         // the version that the step made
  uint64_t optimizer_step = 0;  // the number of steps that were not skipped
  uint64_t data_cursor = 0, random_state = 0;
  double grad_norm = 0;
  float learning_rate = 0, loss_scale = 1;
  float gradient_scale = 0;  // clip factor / loss scale; found again by a replay
  uint32_t scaler_steps = 0;
  uint32_t skipped = 0;  // 1: a gradient overflowed, and no parameter changed; no gradients follow
  uint32_t reserved = 0;
  friend bool operator==(const LoggedStep&, const LoggedStep&) = default;
};
static_assert(sizeof(LoggedStep) == 64 && std::is_trivially_copyable_v<LoggedStep>);

// A frame's head on disk, little-endian.
struct StepFrame {
  enum Kind : uint32_t { kBegin = 1, kGradients = 2, kStep = 3, kEnd = 4 };
  uint32_t magic = 0;
  uint32_t kind = 0;
  uint64_t run = 0;
  uint64_t version = 0;      // of the step; kBegin: of the states before the first one
  uint64_t first = 0;        // kGradients: byte of the parameter; kStep: gradient bytes of the step
  uint64_t bytes = 0;        // behind this head
  uint32_t parameter = 0;    // kGradients: the first one; kBegin: check of the model
  uint32_t payload_crc = 0;  // CRC-32C
  // kBegin: the run before; 0: none. kStep, kEnd: all steps up to this version were synced.
  uint64_t extra = 0;
  uint32_t reserved = 0;
  uint32_t head_crc = 0;  // of all before it
};
static_assert(sizeof(StepFrame) == 64 && std::is_trivially_copyable_v<StepFrame>);
inline constexpr uint32_t kStepFrameMagic = 0x4c535054;  // "TPSL"
inline constexpr uint64_t kStepFrameAlign = 8;
inline constexpr uint64_t kStepFrameBytesMax = 64ull << 20;

// Sets magic and check.
void Close(StepFrame* frame);
// True if magic and check fit.
bool IsWhole(const StepFrame& frame);

// A segment by its name.
struct StepSegment {
  std::string path;
  uint64_t base = 0, run = 0;
};
std::string SegmentName(uint64_t base, uint64_t run);
// The folder's segments by base; none if the folder does not exist. Errors: kFileUnreadable.
Result<std::vector<StepSegment>> FindSegments(const std::string& folder);

// The text of kStepLogFile; and the run that a checkpoint's file names, 0: none.
std::string StepLogText(uint64_t run);
uint64_t StepLogRunOf(const std::string& checkpoint);

// What the steps are read for.
struct StepLogTask {
  std::string folder;
  uint64_t run = 0, base = 0;  // of the checkpoint
  uint32_t model = 0;          // as the writer's
  // Bytes of each parameter's gradient, by ParameterId.
  std::vector<uint64_t> gradient_bytes = {};
  uint64_t last = UINT64_MAX;  // no steps behind this version
  // Read all gradients, and compare their checks. Else they are not touched: for a rank that reads
  // what another one has checked.
  bool checks_gradients = true;
};

class StepLog {
 public:
  // Finds all whole steps behind the base. Errors: kCheckpointBad (damage, naming file, byte and
  // step; the log of another model), kFileUnreadable.
  static Result<StepLog> Open(StepLogTask task);
  // In order, without gaps.
  const std::vector<LoggedStep>& steps() const { return steps_; }
  // The run whose log ends with the last step; a run that goes on names it.
  uint64_t run() const { return run_; }
  uint64_t bytes() const { return bytes_; }  // of all gradients

  // Reads bytes of a parameter's gradient, from its byte `first` on, of the step at `index`, which
  // was not skipped. Errors: kFileUnreadable.
  Status Read(size_t index, uint32_t parameter, uint64_t first, std::span<std::byte> bytes);

 private:
  struct Run {  // bytes of consecutive parameters
    uint32_t parameter = 0;
    uint64_t first = 0, bytes = 0, at = 0;
  };
  struct Place {  // of a step
    std::shared_ptr<const UniqueFd> file;
    std::vector<Run> runs;
  };
  struct Extent {  // of one parameter
    uint32_t parameter = 0;
    uint64_t first = 0, bytes = 0, at = 0;
  };
  class Segment;

  explicit StepLog(StepLogTask task) : task_(std::move(task)), run_(task_.run) {}
  Status Follow();
  Result<bool> FollowBranch();
  Result<bool> ReadSegment(size_t index, bool is_branch);
  Result<bool> Take(Segment* segment, const StepFrame& frame, Place* place, std::string* what);
  bool LacksSegment() const;
  std::vector<size_t> BranchesAt(uint64_t version) const;  // indices of segments
  std::vector<Extent> ExtentsOf(const std::vector<Run>& runs) const;
  bool HasAll(const std::vector<Run>& runs) const;
  uint64_t version() const { return steps_.empty() ? task_.base : steps_.back().version; }

  StepLogTask task_;
  uint64_t run_;
  uint64_t bytes_ = 0;
  std::vector<StepSegment> segments_;
  std::vector<uint64_t> previous_;  // by segment: the run before; 0: none, or not readable
  std::vector<bool> tried_;         // by segment
  std::vector<LoggedStep> steps_;
  std::vector<Place> places_;
  size_t indexed_ = SIZE_MAX;  // step of extents_
  std::vector<Extent> extents_;
};

}  // namespace tidepool
