// ModelError: thrown by our models when they cannot continue: values are NaN or infinite, or ranks
// that share experts have lost each other.
//
// Any thread. It passes through LibTorch's backward; CatchTorch returns its status.
#pragma once

#include <utility>

#include <c10/util/Exception.h>

#include "base/status.h"

namespace tidepool::trainer {

class ModelError : public c10::Error {
 public:
  explicit ModelError(Status status)
      : c10::Error({__func__, __FILE__, __LINE__}, status.what()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace tidepool::trainer
