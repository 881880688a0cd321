// TensorRoad: moves the boundary tensors of an emulated pipeline through host memory over paced
// links: down from the GPU that makes a tensor, up to the GPU that uses it.
//
// Any thread. The copy up starts when the tensor is in host memory and its GPU has requested it.
// The later of the two events starts the copy, so it does not need a rank's thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "bench/pipeline/paced_links.h"

namespace tidepool::bench {

// One use of a tensor.
struct RoadItem {
  enum class Kind : uint8_t {
    kInput,     // the input of `stage`, in forward
    kSaved,     // the same input, in backward
    kGradient,  // the gradient of the output of `stage`
  };
  Kind kind = Kind::kInput;
  uint32_t stage = 0, micro_batch = 0;
  friend auto operator<=>(const RoadItem&, const RoadItem&) = default;
};

class TensorRoad {
 public:
  // `tensor_bytes`: size of each tensor; `complexes`: the root complex of each GPU. The links must
  // outlive the road, and all copies must have ended before the road does.
  TensorRoad(uint64_t tensor_bytes, std::vector<uint32_t> complexes, PacedLinks* links);

  // Starts the copy of a new tensor of `gpu` to host memory; `uses`: all its uses. Does not block.
  void Send(uint32_t gpu, const std::vector<RoadItem>& uses);
  // Requests the tensor's copy to `gpu`, which starts when the tensor is in host memory. One call
  // per item. Does not block.
  void Want(uint32_t gpu, const RoadItem& item);
  // Waits until the tensor is on the GPU that requested it.
  void Await(const RoadItem& item);
  // Waits until the tensor has left the GPU that made it.
  void AwaitLeft(const RoadItem& item);

 private:
  struct Tensor {
    bool in_host = false, wanted = false, there = false;
    uint32_t gpu = 0;  // the GPU that requested it
  };
  void Arrived(const std::vector<RoadItem>& uses);
  void Ascend(const RoadItem& item, uint32_t gpu);

  const uint64_t tensor_bytes_;
  const std::vector<uint32_t> complexes_;
  PacedLinks* const links_;
  // By GPU: one buffer for outputs and one for inputs, on the GPU and in host memory. All tensors
  // share them, as no code reads their content.
  std::vector<std::vector<std::byte>> out_, in_, host_out_, host_in_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RoadItem, Tensor> tensors_;
};

}  // namespace tidepool::bench
