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

#include "tests/fakes/hooked_chunks.h"
#include "trainer/hooks/operator_hook.h"

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

constexpr int64_t kWidth = tidepool::testing::HookedChunks::kWidth;

class HookAllocations : public ::testing::Test {
 protected:
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

  tidepool::testing::HookedChunks chunks_;
  const std::vector<at::Tensor>& weights_ = chunks_.weights;
  ParameterCache* const cache_ = chunks_.cache.get();
  OperatorHook* const hook_ = chunks_.hook.get();
  at::Tensor product_ = at::zeros({kWidth, kWidth}), joined_ = at::zeros({3 * kWidth, kWidth});
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
