// Objects: what programs hold by handles of the driver: allocations, streams, events and modules.
//
// Any thread: each function locks; who uses a field itself holds `mutex`. There is one for the
// process. It never goes, because threads of a program may call the driver while it exits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "tests/fakes/fake_cuda/memory.h"
#include "tests/fakes/fake_cuda/stream.h"

namespace tidepool::fake_cuda {

struct Objects {
  static Objects& Get();

  // Returns the handle of `backing`.
  unsigned long long Add(std::shared_ptr<Backing> backing);
  // Null: no such handle. The null stream is the default stream.
  std::shared_ptr<Backing> Allocation(unsigned long long handle);
  std::shared_ptr<FakeStream> Stream(const void* handle);
  std::shared_ptr<FakeEvent> Event(const void* handle);
  // Until the streams of this GPU have done what was put into them so far: the driver does so
  // before it loads code (seen on an H200 with driver 580), also where a stream waits for a flag
  // that only the calling thread would write.
  void AwaitStreamsOf(int ordinal);
  // Objects of all kinds that have not been given back.
  uint64_t live();

  std::mutex mutex;
  std::map<unsigned long long, std::shared_ptr<Backing>> allocations;
  std::map<const void*, std::shared_ptr<FakeStream>> streams;
  std::map<const void*, std::shared_ptr<FakeEvent>> events;
  std::set<unsigned long long> modules;
  std::shared_ptr<FakeStream> default_stream = std::make_shared<FakeStream>(0);
  unsigned long long next = 1;
};

}  // namespace tidepool::fake_cuda
