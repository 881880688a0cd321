// HookedChunks: three parameters of a chunk each, all of which have a block, and the operator hook
// that watches them; over the in-memory service.
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "base/clock.h"
#include "tests/fakes/memory_chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/hooks/operator_hook.h"
#include "trainer/hooks/storage_binding.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::testing {

struct HookedChunks {
  static constexpr int64_t kWidth = 8;

  HookedChunks() {
    trainer::LayoutOptions options;
    options.chunk_bytes = kWidth * kWidth * sizeof(float);
    std::vector<trainer::ParameterNote> notes;
    std::vector<trainer::BoundParameter> places;
    for (ChunkId i = 0; i < 3; ++i) {
      notes.push_back({"w" + std::to_string(i), {kWidth, kWidth}, 0, 0, false});
      weights.push_back(at::zeros({kWidth, kWidth}));
      places.push_back({.chunk = i, .byte_begin = 0});
    }
    layout = trainer::BuildLayout(notes, options).value();

    server = std::make_unique<MemoryServer>(&layout);
    service = std::make_unique<MemoryChunkService>(server.get(), 0, layout.RcacheBytes(0, 3), 1, 0);
    trainer::CacheSetup setup;
    setup.layout = &layout;
    setup.service = service.get();
    setup.groups = {nullptr};
    setup.clock = &clock;
    cache = std::move(trainer::ParameterCache::Create(std::move(setup))).value();

    const std::vector<uint64_t> bytes(3, options.chunk_bytes);
    binding = std::move(trainer::StorageBinding::Bind(bytes, weights, places)).value();
    hook = std::make_unique<trainer::OperatorHook>(cache.get(), binding.get());
  }

  SteadyClock clock;
  trainer::ChunkLayout layout;
  std::vector<at::Tensor> weights;
  std::unique_ptr<MemoryServer> server;
  std::unique_ptr<MemoryChunkService> service;
  std::unique_ptr<trainer::ParameterCache> cache;
  std::unique_ptr<trainer::StorageBinding> binding;
  std::unique_ptr<trainer::OperatorHook> hook;
};

}  // namespace tidepool::testing
