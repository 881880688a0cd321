#include "bench/pipeline/tensor_road.h"

#include <utility>

namespace tidepool::bench {

TensorRoad::TensorRoad(uint64_t tensor_bytes, std::vector<uint32_t> complexes, PacedLinks* links)
    : tensor_bytes_(tensor_bytes), complexes_(std::move(complexes)), links_(links) {
  for (auto* side : {&out_, &in_, &host_out_, &host_in_})
    side->assign(complexes_.size(), std::vector<std::byte>(tensor_bytes));
}

void TensorRoad::Send(uint32_t gpu, const std::vector<RoadItem>& uses) {
  links_->Start({.to = host_in_[gpu].data(),
                 .from = out_[gpu].data(),
                 .bytes = tensor_bytes_,
                 .gpu = gpu,
                 .complex = complexes_[gpu],
                 .up = false,
                 .then = [this, uses] { Arrived(uses); }});
}

void TensorRoad::Arrived(const std::vector<RoadItem>& uses) {
  std::vector<std::pair<RoadItem, uint32_t>> ascend;
  {
    const std::lock_guard lock(mutex_);
    for (const RoadItem& item : uses) {
      Tensor& tensor = tensors_[item];
      tensor.in_host = true;
      if (tensor.wanted) ascend.emplace_back(item, tensor.gpu);
    }
    changed_.notify_all();
  }

  for (const auto& [item, gpu] : ascend) Ascend(item, gpu);
}

void TensorRoad::Want(uint32_t gpu, const RoadItem& item) {
  {
    const std::lock_guard lock(mutex_);
    Tensor& tensor = tensors_[item];
    tensor.wanted = true;
    tensor.gpu = gpu;
    if (!tensor.in_host) return;
  }
  Ascend(item, gpu);
}

void TensorRoad::Ascend(const RoadItem& item, uint32_t gpu) {
  LinkCopy copy;
  copy.to = in_[gpu].data();
  copy.from = host_out_[gpu].data();
  copy.bytes = tensor_bytes_;
  copy.gpu = gpu;
  copy.complex = complexes_[gpu];

  copy.then = [this, item] {
    const std::lock_guard lock(mutex_);
    tensors_[item].there = true;
    changed_.notify_all();
  };
  links_->Start(std::move(copy));
}

void TensorRoad::Await(const RoadItem& item) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tensors_[item].there; });
}

void TensorRoad::AwaitLeft(const RoadItem& item) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tensors_[item].in_host; });
}

}  // namespace tidepool::bench
