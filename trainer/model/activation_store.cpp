#include "trainer/model/activation_store.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace tidepool::trainer {

c10::Stream ActivationStore::SideOf(c10::Device device) {
  if (!side_) side_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return *side_;
}

void ActivationStore::CopyOut(const at::Tensor& input, Kept* kept) {
  device_ = input.device();
  const at::TensorOptions options = input.options().device(c10::DeviceType::CPU);
  if (device_.is_cpu()) {
    kept->host = at::empty(input.sizes(), options).copy_(input);
    return;
  }

  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream side = SideOf(device_);
  c10::Event made(device_.type());
  made.record(device.getStream(device_));
  made.block(side);

  const c10::StreamGuard on_side(side);
  kept->host = at::empty(input.sizes(), options.pinned_memory(true));
  kept->host.copy_(input, /*non_blocking=*/true);
  device.recordDataPtrOnStream(input.storage().data_ptr(), side);
  c10::Event left(device_.type());
  left.record(side);
  leaving_.Follow(std::move(left));
}

ActivationStore::Slot ActivationStore::Put(const at::Tensor& input) {
  if (!kept_.empty()) kept_.rbegin()->second.device.reset();
  Kept& kept = kept_[next_];
  kept.device = input.detach();
  CopyOut(kept.device, &kept);
  return next_++;
}

at::Tensor ActivationStore::PlaceFor(const at::Tensor& host) {
  for (const at::Tensor& place : places_) {
    // An alias that was handed out shares the storage.
    const bool unused = place.storage().use_count() == 1;
    if (unused && place.sizes() == host.sizes() && place.scalar_type() == host.scalar_type())
      return place.detach();
  }
  places_.push_back(at::empty(host.sizes(), host.options().pinned_memory(false).device(device_)));
  return places_.back().detach();
}

void ActivationStore::BringBack(Kept* kept) {
  if (kept->device.defined()) return;
  if (device_.is_cpu()) {
    kept->device = PlaceFor(kept->host).copy_(kept->host);
    return;
  }

  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream side = SideOf(device_);
  c10::Event used(device_.type());
  used.record(device.getStream(device_));

  const c10::StreamGuard on_side(side);
  const size_t places = places_.size();
  kept->device = PlaceFor(kept->host);
  if (places_.size() == places) used.block(side);  // operators not run yet use the buffer
  kept->device.copy_(kept->host, /*non_blocking=*/true);
  kept->back.emplace(device_.type());
  kept->back->record(side);
}

at::Tensor ActivationStore::Take(Slot slot) {
  const auto found = kept_.find(slot);
  TORCH_CHECK(found != kept_.end(), "the backward of a checkpointed piece runs once");
  ahead_ += found->second.device.defined() ? 1 : 0;
  BringBack(&found->second);
  if (found != kept_.begin()) BringBack(&std::prev(found)->second);
  Kept kept = std::move(found->second);
  kept_.erase(found);
  if (kept_.empty()) places_.clear();
  if (kept.back) {
    // Made on the side stream, used on this one.
    const c10::impl::VirtualGuardImpl device(device_.type());
    const c10::Stream current = device.getStream(device_);
    kept.back->block(current);
    device.recordDataPtrOnStream(kept.device.storage().data_ptr(), current);
  }
  return kept.device;
}

size_t ActivationStore::on_device() const {
  return static_cast<size_t>(std::count_if(
      kept_.begin(), kept_.end(), [](const auto& entry) { return entry.second.device.defined(); }));
}

}  // namespace tidepool::trainer
