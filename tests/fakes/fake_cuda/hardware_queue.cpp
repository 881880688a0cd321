#include "tests/fakes/fake_cuda/hardware_queue.h"

#include <cstdlib>
#include <string>
#include <vector>

namespace tidepool::fake_cuda {
namespace {

// The queues that a thread deals out, for one setting of the environment.
struct Dealt {
  std::string setting;
  std::vector<std::shared_ptr<HardwareQueue>> queues;
  size_t next = 0;
};

std::string SettingOf(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::shared_ptr<HardwareQueue> HardwareQueue::OfNewStream() {
  const std::string count = SettingOf("FAKE_CUDA_QUEUES"),
                    order = SettingOf("FAKE_CUDA_QUEUE_ORDER");
  const size_t queues = std::strtoull(count.c_str(), nullptr, 10);
  if (queues == 0) return nullptr;
  static thread_local Dealt dealt;
  if (dealt.setting != count + order) dealt = {.setting = count + order, .queues = {}, .next = 0};
  if (dealt.queues.size() < queues) {
    dealt.queues.push_back(std::make_shared<HardwareQueue>(order == "told"));
    return dealt.queues.back();
  }
  return dealt.queues[dealt.next++ % queues];
}

uint64_t HardwareQueue::AddStream() {
  const std::lock_guard lock(mutex_);
  return ++streams_;
}

uint64_t HardwareQueue::Put() {
  const std::lock_guard lock(mutex_);
  return ++put_;
}

void HardwareQueue::Begin(uint64_t stream, uint64_t place) {
  std::unique_lock lock(mutex_);
  if (as_told_) {
    waiting_.insert(stream);
    changed_.wait(lock, [&] { return !busy_ && *waiting_.rbegin() == stream; });
    waiting_.erase(stream);
  } else {
    changed_.wait(lock, [&] { return !busy_ && next_ == place; });
  }
  busy_ = true;
}

void HardwareQueue::End() {
  const std::lock_guard lock(mutex_);
  busy_ = false;
  ++next_;
  changed_.notify_all();
}

}  // namespace tidepool::fake_cuda
