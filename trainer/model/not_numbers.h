// NotNumbers: what a model of ours throws where its values are NaN or infinite and it cannot go on.
//
// Any thread. It passes LibTorch's backward as it is; CatchTorch makes kNonFinite of it.
#pragma once

#include <c10/util/Exception.h>

namespace tidepool::trainer {

class NotNumbers : public c10::Error {
 public:
  using c10::Error::Error;
};

}  // namespace tidepool::trainer
