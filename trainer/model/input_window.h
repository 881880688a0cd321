// InputWindow: holds the CPU back while inputs of pieces leave a GPU, so that there are only so
// many there.
//
// The thread that runs the model. The CPU puts work into streams far ahead of the GPU; memory of an
// input that is copied out can be used again only when its copy has ended. So behind the copy of
// each input the CPU waits for the copy of the one before: the GPU has the present piece to
// compute.
// `Event`: movable; synchronize() blocks until what was recorded has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace tidepool::trainer {

// Inputs on the GPU at a time. Forward: the input of the present piece, and its result. Backward:
// the inputs of the present piece and of the next one, which is on its way back.
inline constexpr uint32_t kInputsOnDevice = 2;

template <typename Event>
class InputWindow {
 public:
  // `left` is recorded behind the copy of the next input. Blocks until the one before has left.
  void Follow(Event left) {
    if (last_) last_->synchronize();
    last_.emplace(std::move(left));
  }

 private:
  std::optional<Event> last_;
};

}  // namespace tidepool::trainer
