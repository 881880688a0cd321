// ActivationStore: host memory for what checkpointing keeps: the inputs of its pieces leave a GPU
// behind forward and come back before backward needs them.
//
// The thread that runs the model. On a GPU the copies run on a side stream of LibTorch's pool, from
// and to pinned memory, beside the operators; events order the two streams, and LibTorch's
// allocator is told of the second one. In the order of a chain of pieces:
//   forward:   the input of piece k is copied out; it leaves the GPU when that of piece k + 1
//              comes, so the last one is still there. The CPU waits for the copy of the one before
//              (InputWindow);
//   backward:  while piece k is computed again, the input of piece k - 1 is on its way back, to
//              where that of piece k + 1 was: its copy waits for the operators that used it, the
//              CPU for nothing.
// So kInputsOnDevice inputs are on the GPU at a time. On the host a copy takes the place of each,
// for the same order and the same bits. (Elixir v2 and ZeRO-Offload keep activations of checkpoints
// on the host likewise.)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "trainer/model/input_window.h"

namespace tidepool::trainer {

class ActivationStore {
 public:
  using Slot = uint64_t;  // rising in the order of forward

  // Takes the input along; its copy to the host begins.
  Slot Put(const at::Tensor& input);
  // What was put there; the slot is free then. Begins to bring back the one before it.
  at::Tensor Take(Slot slot);
  // A graph was given up before its backward: the slot is free. Harmless when it is so already.
  void Drop(Slot slot) {
    kept_.erase(slot);
    if (kept_.empty()) places_.clear();
  }

  // Inputs that are kept.
  size_t size() const { return kept_.size(); }
  // Inputs that are on their device now, and how many Take found brought back ahead of their need.
  size_t on_device() const;
  uint64_t ahead() const { return ahead_; }
  // Places on the device that inputs come back to.
  size_t places() const { return places_.size(); }

 private:
  struct Kept {
    at::Tensor host, device;         // device: undefined while the input is away
    std::optional<c10::Event> back;  // recorded behind the copy back
  };
  void CopyOut(const at::Tensor& input, Kept* kept);
  // A place of the size of the input that nobody uses any more, as far as the CPU knows, or a new
  // one.
  at::Tensor PlaceFor(const at::Tensor& host);
  void BringBack(Kept* kept);
  c10::Stream SideOf(c10::Device device);

  std::map<Slot, Kept> kept_;
  std::vector<at::Tensor> places_;  // of one backward
  InputWindow<c10::Event> leaving_;
  std::optional<c10::Stream> side_;  // on a GPU
  c10::Device device_{c10::DeviceType::CPU};
  Slot next_ = 1;
  uint64_t ahead_ = 0;
};

}  // namespace tidepool::trainer
