// TensorRoad: the boundary tensors of an emulated pipeline on their way through host memory: down
// from the GPU that has made one, up to the GPU that uses it, over paced links.
//
// Any thread. A tensor goes up when it is in host memory and somebody wants it, whichever comes
// last, so that no rank's thread has to be awake for it.
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
    kInput,     // of `stage`, in forward
    kSaved,     // the same once more, in backward
    kGradient,  // of the output of `stage`
  };
  Kind kind = Kind::kInput;
  uint32_t stage = 0, micro_batch = 0;
  friend auto operator<=>(const RoadItem&, const RoadItem&) = default;
};

class TensorRoad {
 public:
  // `tensor_bytes` of each; `complexes`: by GPU. The links outlive the road, with all copies ended.
  TensorRoad(uint64_t tensor_bytes, std::vector<uint32_t> complexes, PacedLinks* links);

  // A GPU has made a tensor, which these will use. Returns at once.
  void Send(uint32_t gpu, const std::vector<RoadItem>& uses);
  // A GPU wants it, now or when it is there. Returns at once; once for each.
  void Want(uint32_t gpu, const RoadItem& item);
  // Waits until it has come up.
  void Await(const RoadItem& item);
  // Waits until it has left the GPU that made it.
  void AwaitLeft(const RoadItem& item);

 private:
  struct Tensor {
    bool in_host = false, wanted = false, there = false;
    uint32_t gpu = 0;  // that wants it
  };
  void Arrived(const std::vector<RoadItem>& uses);
  void Ascend(const RoadItem& item, uint32_t gpu);

  const uint64_t tensor_bytes_;
  const std::vector<uint32_t> complexes_;
  PacedLinks* const links_;
  // All tensors have the same bytes: of each GPU one that leaves and one that comes, and the
  // host's.
  std::vector<std::vector<std::byte>> out_, in_, host_out_, host_in_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RoadItem, Tensor> tensors_;
};

}  // namespace tidepool::bench
