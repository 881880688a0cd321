// ActivationStore: host memory for the inputs that checkpointing keeps: a piece's input leaves the
// GPU after its forward and returns before its backward needs it.
//
// The thread that runs the model. On a GPU the copies run on a side stream of LibTorch's pool, to
// and from pinned memory, concurrently with the operators; events order the two streams, and
// LibTorch's allocator is told of the second. For a chain of pieces:
//  forward:   the input of piece k is copied out; it leaves the GPU when that of piece k + 1
//             arrives, so the last one is still there. The CPU waits for the copy of the previous
//             one (InputWindow);
//  backward:  while piece k is recomputed, the input of piece k - 1 is copied back to where that
//             of piece k + 1 was: the copy waits for the operators that used that place, and the
//             CPU does not wait.
// So at most kInputsOnDevice inputs are on the GPU at a time. On the host each input is copied
// instead, for the same order and the same bits. (Elixir v2 and ZeRO-Offload also keep checkpointed
// activations on the host.)
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
  using Slot = uint64_t;  // ascending in forward order

  // Stores the input and starts its copy to the host.
  Slot Put(const at::Tensor& input);
  // Returns the input and frees the slot. Starts copying back the one before it.
  at::Tensor Take(Slot slot);
  // Frees the slot of a graph that was dropped before its backward. Does nothing if it is free.
  void Drop(Slot slot) {
    kept_.erase(slot);
    if (kept_.empty()) places_.clear();
  }

  // Number of stored inputs.
  size_t size() const { return kept_.size(); }
  // Inputs that are on their device now; and how many Take found copied back in time.
  size_t on_device() const;
  uint64_t ahead() const { return ahead_; }
  // Number of device buffers for returning inputs.
  size_t places() const { return places_.size(); }

 private:
  struct Kept {
    at::Tensor host, device;         // device: undefined while the input is on the host
    std::optional<c10::Event> back;  // recorded after the copy back
  };
  void CopyOut(const at::Tensor& input, Kept* kept);
  // A free buffer of the input's size, as far as the CPU knows, or a new one.
  at::Tensor PlaceFor(const at::Tensor& host);
  void BringBack(Kept* kept);
  c10::Stream SideOf(c10::Device device);

  std::map<Slot, Kept> kept_;
  std::vector<at::Tensor> places_;  // in use during one backward
  InputWindow<c10::Event> leaving_;
  std::optional<c10::Stream> side_;  // on a GPU
  c10::Device device_{c10::DeviceType::CPU};
  Slot next_ = 1;
  uint64_t ahead_ = 0;
};

}  // namespace tidepool::trainer
