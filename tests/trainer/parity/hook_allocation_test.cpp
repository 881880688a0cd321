// The operator hook allocates nothing for an operator whose chunks are there: allocations of this
// thread are counted beside those of a callback that does nothing, which has the same inputs made
// for it.
#include <cstdlib>
#include <new>

#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "tests/fakes/memory_chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/hooks/operator_hook.h"
#include "trainer/hooks/storage_binding.h"
#include "trainer/layout/build_layout.h"

namespace {

thread_local bool counting = false;
thread_local uint64_t allocations = 0;

void* Allocate(std::size_t bytes) {
  if (counting) ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return Allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return Allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tidepool::trainer {
namespace hook_allocation_test {

constexpr int64_t kWidth = 8;

// Three parameters of a chunk each, all of which have a block.
class HookAllocations : public ::testing::Test {
 protected:
  HookAllocations() {
    LayoutOptions options;
    options.chunk_bytes = kWidth * kWidth * sizeof(float);
    std::vector<ParameterNote> notes;
    std::vector<BoundParameter> places;
    for (ChunkId i = 0; i < 3; ++i) {
      notes.push_back({"w" + std::to_string(i), {kWidth, kWidth}, 0, 0, false});
      weights_.push_back(at::zeros({kWidth, kWidth}));
      places.push_back({.chunk = i, .element_begin = 0});
    }
    layout_ = BuildLayout(notes, options).value();
    server_ = std::make_unique<tidepool::testing::MemoryServer>(&layout_);
    service_ = std::make_unique<tidepool::testing::MemoryChunkService>(
        server_.get(), 0, layout_.RcacheBytes(0, 3), 1, 0);
    CacheSetup setup;
    setup.layout = &layout_;
    setup.service = service_.get();
    setup.groups = {nullptr};
    setup.clock = &clock_;
    cache_ = std::move(ParameterCache::Create(std::move(setup))).value();
    binding_ = std::move(StorageBinding::Bind(std::vector<uint64_t>(3, options.chunk_bytes),
                                              weights_, places))
                   .value();
    hook_ = std::make_unique<OperatorHook>(cache_.get(), binding_.get());
    product_ = at::zeros({kWidth, kWidth});
    joined_ = at::zeros({3 * kWidth, kWidth});
  }

  // Operators of one parameter, of two, and of a list.
  void Operators(int times) {
    for (int i = 0; i < times; ++i) {
      at::mm_out(product_, product_, weights_[0]);
      at::mm_out(product_, weights_[1], weights_[2]);
      at::cat_out(joined_, weights_);
    }
  }
  uint64_t AllocationsOf(int times) {
    allocations = 0;
    counting = true;
    Operators(times);
    counting = false;
    return allocations;
  }

  SteadyClock clock_;
  ChunkLayout layout_;
  std::vector<at::Tensor> weights_;
  at::Tensor product_, joined_;
  std::unique_ptr<tidepool::testing::MemoryServer> server_;
  std::unique_ptr<tidepool::testing::MemoryChunkService> service_;
  std::unique_ptr<ParameterCache> cache_;
  std::unique_ptr<StorageBinding> binding_;
  std::unique_ptr<OperatorHook> hook_;
};

TEST_F(HookAllocations, ThereAreNoneOnceChunksAndOrderAreKnown) {
  hook_->Install();
  for (int pass = 0; pass < 2; ++pass) {
    ASSERT_TRUE(cache_->BeginPass(PassKind::kEvaluation, 0).ok());
    Operators(20);
  }
  ASSERT_TRUE(cache_->BeginPass(PassKind::kEvaluation, 0).ok());
  Operators(2);
  ASSERT_TRUE(cache_->following());
  const uint64_t seen = hook_->operators_seen();
  const uint64_t hooked = AllocationsOf(16);
  EXPECT_GE(hook_->operators_seen() - seen, 3 * 16u);
  EXPECT_TRUE(hook_->status().ok()) << hook_->status().Format();
  hook_->Remove();

  // The weights stay where they are, so that the operators can do without the hook.
  const at::CallbackHandle idle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  Operators(2);
  const uint64_t plain = AllocationsOf(16);
  at::removeCallback(idle);
  EXPECT_EQ(hooked, plain);
}

}  // namespace hook_allocation_test
}  // namespace tidepool::trainer
