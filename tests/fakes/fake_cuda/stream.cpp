#include "tests/fakes/fake_cuda/stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace tidepool::fake_cuda {
namespace {

constexpr uint64_t kPieceBytes = 64 << 10;
constexpr auto kLook = std::chrono::milliseconds(2);  // at a context that broke elsewhere

void Pause(int64_t microseconds) {
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace

uint64_t FakeStream::Put(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(operation);
  if (!started_) std::thread([self = shared_from_this()] { self->Main(); }).detach();
  started_ = true;
  changed_.notify_all();
  return ++put_;
}

uint64_t FakeStream::last() const {
  const std::lock_guard lock(mutex_);
  return put_;
}

bool FakeStream::Done(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

void FakeStream::Await(uint64_t number) const {
  std::unique_lock lock(mutex_);
  while (done_ < number && World::Get().broken() == device::kCudaSuccess) changed_.wait_for(lock, kLook);
}

void FakeStream::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void FakeStream::Main() {
  for (;;) {
    Operation operation;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !operations_.empty(); });
      if (operations_.empty()) return;
      operation = operations_.front();
      operations_.pop_front();
    }
    // In a broken context nothing is done any more, and nobody learns of it by a marker: all calls answer the error.
    if (World::Get().broken() == device::kCudaSuccess && !Run(operation)) World::Get().Break(kIllegalAddress);
    const std::lock_guard lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
}

bool FakeStream::Run(const Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::kCopy:
    case Operation::Kind::kFill: return Move(operation);
    case Operation::Kind::kWait: return Wait(operation);
    case Operation::Kind::kWrite: return AddressSpace::Get().WriteFlag(operation.dst, operation.value);
  }
  return false;
}

bool FakeStream::Move(const Operation& operation) {
  const auto dst = AddressSpace::Get().Find(operation.dst, operation.bytes);
  if (!dst) return false;
  if (operation.kind == Operation::Kind::kFill) {
    if (dst->host && !dst->registered) return false;
    std::memset(dst->data, static_cast<int>(operation.value), operation.bytes);
    return true;
  }
  const auto src = AddressSpace::Get().Find(operation.src, operation.bytes);
  if (!src) return false;
  const int64_t slow_us = World::Get().settings().slow_us;
  for (uint64_t at = 0; at < operation.bytes; at += kPieceBytes) {
    std::memcpy(dst->data + at, src->data + at, std::min(kPieceBytes, operation.bytes - at));
    Pause(slow_us);
  }
  return true;
}

bool FakeStream::Wait(const Operation& operation) {
  for (int64_t look = 0;; ++look) {
    const auto value = AddressSpace::Get().ReadFlag(operation.dst);
    if (!value) return false;
    if (static_cast<int64_t>(*value - operation.value) >= 0) return true;
    if (World::Get().broken() != device::kCudaSuccess) return true;
    if (look > 20) Pause(50);
  }
}

}  // namespace tidepool::fake_cuda
