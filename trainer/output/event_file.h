// EventFile: writes scalars in TensorBoard's event format, so that `tensorboard --logdir DIR` shows
// a run.
//
// One thread. The format is TFRecord framing (length, masked CRC32C, bytes, masked CRC32C) around a
// hand-encoded Event message; every record is flushed, so readers can follow a running training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

class EventFile {
 public:
  // Creates DIR/events.out.tfevents.<seconds>.<suffix>. Errors: kFileWriteFailed.
  static Result<EventFile> Create(const std::string& directory, std::string_view suffix);

  // Appends one scalar. Errors: kFileWriteFailed.
  Status Scalar(std::string_view tag, uint64_t step, float value);

 private:
  explicit EventFile(UniqueFd fd) : fd_(std::move(fd)) {}
  Status Record(std::string_view message);
  UniqueFd fd_;
};

}  // namespace tidepool::trainer
