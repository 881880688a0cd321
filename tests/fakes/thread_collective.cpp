#include "tests/fakes/thread_collective.h"

#include <algorithm>
#include <limits>

#include "base/units.h"

namespace tidepool::testing {

ThreadGroup::ThreadGroup(uint32_t world, bool on_streams, device::Device* device)
    : world_(world), on_streams_(on_streams), memory_(2 * kPageBytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  std::byte* const page = memory_.data() + (RoundUp(address, kPageBytes) - address);
  flags_ = reinterpret_cast<device::Flag*>(page);
  if (device == nullptr) return;
  registered_ = std::move(device->Register(page, kPageBytes)).value();
  copies_ = std::move(device->OpenStream()).value();
}

void ThreadGroup::Join(uint64_t number, uint32_t rank, bool gather,
                       const trainer::BlockView& block) {
  std::lock_guard lock(mutex_);
  if (ops_.size() <= number) ops_.resize(number + 1);
  Op& op = ops_[number];
  if (op.joined == 0) {
    op.gather = gather;
    op.shard_elements = block.shard_elements;
    op.blocks.assign(world_, nullptr);
  }
  op.failed |= op.gather != gather || op.shard_elements != block.shard_elements ||
               block.dtype != DType::kF32;
  op.blocks[rank] = static_cast<float*>(block.data);
  if (++op.joined < world_ || on_streams_) return;
  if (!op.failed) Run(&op);
  op.done = true;
  changed_.notify_all();
}

bool ThreadGroup::Poll() {
  std::lock_guard lock(mutex_);
  const uint64_t number = *finished() + 1;
  if (broken_ || ops_.size() <= number || ops_[number].joined < world_) return false;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (*arrived(rank) < number) return false;
  }
  if (!ops_[number].failed) Run(&ops_[number]);
  ops_[number].done = true;
  *finished() = number;
  return true;
}

void ThreadGroup::Run(Op* op) {
  if (copies_ == nullptr) return may_fail_ ? ExchangeWithoutOrder(op) : Exchange(op);
  const uint64_t elements = op->shard_elements * world_;
  const std::vector<float*> blocks = op->blocks;
  std::vector<std::vector<float>> here(world_, std::vector<float>(elements));
  for (uint32_t rank = 0; rank < world_; ++rank) {
    copies_->Copy(here[rank].data(), blocks[rank], elements * sizeof(float));
    copies_->Synchronize(copies_->Record());
    op->blocks[rank] = here[rank].data();
  }
  Exchange(op);
  for (uint32_t rank = 0; rank < world_; ++rank) {
    copies_->Copy(blocks[rank], here[rank].data(), elements * sizeof(float));
    copies_->Synchronize(copies_->Record());
  }
}

void ThreadGroup::Exchange(Op* op) {
  ExchangeShards(op);
}

// The thread sanitizer does not look at this one.
__attribute__((no_sanitize("thread"), noinline)) void ThreadGroup::ExchangeWithoutOrder(Op* op) {
  ExchangeShards(op);
}

__attribute__((always_inline)) inline void ThreadGroup::ExchangeShards(Op* op) {
  const uint64_t shard = op->shard_elements;
  for (uint32_t owner = 0; owner < world_; ++owner) {
    float* own = op->blocks[owner] + owner * shard;
    for (uint64_t i = 0; i < shard; ++i) {
      float sum = 0;
      for (uint32_t rank = 0; rank < world_; ++rank) {
        float* other = op->blocks[rank] + owner * shard + i;
        if (op->gather) *other = own[i];
        sum += *other;
        // What a reduce-scatter leaves in the other shards is unspecified.
        if (!op->gather && rank != owner) *other = std::numeric_limits<float>::quiet_NaN();
      }
      if (!op->gather) own[i] = sum;
    }
  }
}

bool ThreadGroup::Done(uint64_t number) {
  std::lock_guard lock(mutex_);
  return ops_[number].done || broken_;
}

Status ThreadGroup::Wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ops_[number].done || broken_; });
  if (!ops_[number].done) return Status(ErrorId::kCollectiveFailed, "a rank of the group has left");
  return ops_[number].failed
             ? Status(ErrorId::kCollectiveFailed, "ranks started different operations")
             : Status();
}

void ThreadGroup::Break() {
  std::lock_guard lock(mutex_);
  broken_ = true;
  *finished() = device::kFlagPoison;
  changed_.notify_all();
}

}  // namespace tidepool::testing
