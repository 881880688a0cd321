// SaveRequest and SaveResult: the messages between the serve loop and the checkpoint thread.
//
// The serve loop pushes a SaveRequest and keeps every plane it names unchanged until the SaveResult
// of the same connection has come; sealed updates of that job wait until then. The checkpoint
// thread only reads the planes, touches only files beneath `directory`, and answers every request
// exactly once, even on failure. A connection has at most one save in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/checkpoint/state_stream.h"
#include "memserver/checkpoint/step_stream.h"

namespace tidepool::memserver {

// One tensor of the file.
struct SavedTensor {
  std::string name;
  std::vector<uint64_t> dims;   // row-major; empty for a scalar
  const float* data = nullptr;  // in the host pool; `count` values, the product of dims
  uint64_t count = 0;
  // Replaces `data` if the master is split (base/formats/split_float.h).
  const uint16_t* high = nullptr;
  const int16_t* rest = nullptr;
  // Replaces both if the weights lie on NVMe: fills `values` with those from `first` on. Called by
  // the checkpoint thread; may block.
  std::function<Status(uint64_t first, std::span<float> values)> read = {};
};

struct SaveRequest {
  ConnectionId connection = 0;
  UniqueFd directory;     // O_PATH descriptor that the client passed
  std::string name;       // of the file in the directory: one path component
  int64_t waited_ns = 0;  // the part of its time that has passed already
  // Released when no thread is in the user's file system for this save any more.
  std::shared_ptr<const void> lane = {};
  std::vector<SavedTensor> tensors;
  // If set, makes `tensors`; the loop has no time for it. Call it once, on the thread that reads
  // for the save.
  std::function<std::vector<SavedTensor>()> list = {};
  // Replaces the file: all states, into memory (state_stream.h).
  std::optional<StreamTask> stream = {};
  // The same for steps, for as long as they are wanted (step_stream.h).
  std::optional<StepTask> steps = {};
  // For the file's header: job, version, step numbers.
  std::vector<std::pair<std::string, std::string>> metadata;
};

struct SaveResult {
  ConnectionId connection = 0;
  Status result;  // ok, or kSaveFailed with the cause
  // A chunk of a stream was copied; the result follows.
  bool goes_on = false;
  bool of_steps = false;  // of a stream of steps
};

}  // namespace tidepool::memserver
