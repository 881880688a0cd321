#include "tests/fakes/fake_cuda/objects.h"

#include <utility>
#include <vector>

namespace tidepool::fake_cuda {

Objects& Objects::Get() {
  static auto* const objects = new Objects();
  return *objects;
}

unsigned long long Objects::Add(std::shared_ptr<Backing> backing) {
  const std::lock_guard lock(mutex);
  allocations[next] = std::move(backing);
  return next++;
}

std::shared_ptr<Backing> Objects::Allocation(unsigned long long handle) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(handle);
  return found == allocations.end() ? nullptr : found->second;
}

std::shared_ptr<FakeStream> Objects::Stream(const void* handle) {
  const std::lock_guard lock(mutex);
  if (handle == nullptr) return default_stream;
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

std::shared_ptr<FakeEvent> Objects::Event(const void* handle) {
  const std::lock_guard lock(mutex);
  const auto found = events.find(handle);
  return found == events.end() ? nullptr : found->second;
}

void Objects::AwaitStreamsOf(int ordinal) {
  std::vector<std::shared_ptr<FakeStream>> all;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [handle, stream] : streams) {
      if (stream->ordinal == ordinal) all.push_back(stream);
    }
  }
  for (const auto& stream : all) stream->Await(stream->last());
}

uint64_t Objects::live() {
  const std::lock_guard lock(mutex);
  return allocations.size() + streams.size() + events.size() + modules.size();
}

}  // namespace tidepool::fake_cuda
