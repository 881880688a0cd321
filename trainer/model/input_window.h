// InputWindow: holds the CPU back while inputs of pieces leave a GPU, so that only a limited number
// are there.
//
// The thread that runs the model. The CPU enqueues work far ahead of the GPU; memory of an input
// that is copied out can be reused only when the copy has ended. So after enqueueing each input's
// copy the CPU waits for the previous copy; the GPU meanwhile computes the present piece. `Event`:
// movable; synchronize() blocks until the recorded work has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace tidepool::trainer {

// Inputs on the GPU at a time. Forward: the present piece's input, and its result. Backward: the
// inputs of the present piece and of the next one, which is being copied back.
inline constexpr uint32_t kInputsOnDevice = 2;

template <typename Event>
class InputWindow {
 public:
  // `left` is recorded after the next input's copy. Blocks until the previous input has left.
  void Follow(Event left) {
    if (last_) last_->synchronize();
    last_.emplace(std::move(left));
  }

 private:
  std::optional<Event> last_;
};

}  // namespace tidepool::trainer
