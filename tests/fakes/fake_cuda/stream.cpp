#include "tests/fakes/fake_cuda/stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <shared_mutex>
#include <thread>

#include "tests/fakes/fake_cuda/compute_token.h"
#include "tests/fakes/fake_cuda/late_copies.h"

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
  operations_.back().breaks = World::Get().breaks();
  if (queue_ != nullptr) operations_.back().place = queue_->Put();
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
  while (done_ < number && (running_ || World::Get().broken() == device::kCudaSuccess))
    changed_.wait_for(lock, kLook);
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
      running_ = true;
    }
    const bool apart = queue_ == nullptr || (operation.kind == Operation::Kind::kAfter &&
                                             queue_->events_stand_outside());
    if (apart && operation.other != nullptr) AwaitOther(operation);
    if (queue_ != nullptr) queue_->Begin(of_queue_, operation.place);
    if (!apart && operation.other != nullptr) AwaitOther(operation);
    // What was put in before the context broke is not done any more, and nobody learns of it by a
    // marker: all calls answer the error.
    if (World::Get().breaks() == operation.breaks && !Run(operation))
      World::Get().Break(kIllegalAddress, operation.breaks);
    LateCopies::End(operation.late);
    if (queue_ != nullptr) queue_->End();
    operation.other = nullptr;  // its stream may end with it
    const std::lock_guard lock(mutex_);
    running_ = false;
    ++done_;
    changed_.notify_all();
  }
}

bool FakeStream::Run(const Operation& operation) {
  // A wait has its turn when it ends: until then the GPU lets others compute.
  const bool computes =
      operation.kind != Operation::Kind::kCopy && operation.kind != Operation::Kind::kWait;
  const auto turn = computes ? std::make_unique<ComputeToken::Turn>() : nullptr;
  switch (operation.kind) {
    case Operation::Kind::kCopy:
    case Operation::Kind::kFill: return Move(operation);
    case Operation::Kind::kKernel:
      return operation.kernel->run(operation.arguments.data(), operation.value);
    case Operation::Kind::kWait: return Wait(operation) && ComputeToken::TakeOneTurn();
    case Operation::Kind::kAfter: return true;  // AwaitOther
    case Operation::Kind::kWrite:
      return AddressSpace::Get().WriteFlag(operation.dst, operation.value);
  }
  return false;
}

bool FakeStream::Move(const Operation& operation) {
  AddressSpace& space = AddressSpace::Get();
  const int64_t slow_us = World::Get().settings().slow_us;
  // Host memory that is not registered any more is none that a GPU reaches.
  const auto reaches = [&operation](const std::optional<Target>& target) {
    return target && (!target->host || target->registered || operation.pageable);
  };
  for (uint64_t at = 0; at < operation.bytes; at += kPieceBytes) {
    const uint64_t bytes = std::min(kPieceBytes, operation.bytes - at);
    {
      const std::shared_lock uses(space.uses());
      const auto dst = space.Find(operation.dst + at, bytes);
      const bool fill = operation.kind == Operation::Kind::kFill;
      const auto src = fill ? dst : space.Find(operation.src + at, bytes);
      if (!reaches(dst) || !reaches(src)) return false;
      if (fill) {
        std::memset(dst->data, static_cast<int>(operation.value), bytes);
      } else {
        std::memcpy(dst->data, src->data, bytes);
      }
    }
    if (World::Get().breaks() != operation.breaks) return true;
    if (operation.kind == Operation::Kind::kCopy) Pause(slow_us);
  }
  return true;
}

void FakeStream::AwaitOther(const Operation& operation) {
  for (int64_t look = 0;
       !operation.other->Done(operation.value) && World::Get().breaks() == operation.breaks;
       ++look) {
    if (look > 20) Pause(50);
  }
}

bool FakeStream::Wait(const Operation& operation) {
  for (int64_t look = 0;; ++look) {
    const auto value = AddressSpace::Get().ReadFlag(operation.dst);
    if (!value) return false;
    if (static_cast<int64_t>(*value - operation.value) >= 0) return true;
    if (World::Get().breaks() != operation.breaks) return true;
    if (look > 20) Pause(50);
  }
}

}  // namespace tidepool::fake_cuda
