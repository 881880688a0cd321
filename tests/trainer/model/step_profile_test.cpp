// ProfileStep against what a real step asks of the host's allocator, and its cost in calls.
#include "trainer/profile/step_profile.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "trainer/model/gpt.h"

namespace tidepool::trainer {
namespace step_profile_test {

// Counts what LibTorch asks of the host's allocator while it stands in for it.
class CountingHost final : public c10::Allocator {
 public:
  CountingHost() : real_(c10::GetAllocator(c10::kCPU)) {
    now = this;
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  ~CountingHost() override { c10::SetAllocator(c10::kCPU, real_, kPriority); }
  CountingHost(const CountingHost&) = delete;
  CountingHost& operator=(const CountingHost&) = delete;

  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr data = real_->allocate(size);
    void* place = data.get();
    if (place == nullptr) return data;
    live_ += size;
    peak_ = std::max(peak_, live_);
    pieces_.emplace(place, std::make_pair(size, std::move(data)));
    return {place, place, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

  uint64_t peak() const { return peak_; }
  uint64_t live() const { return live_; }
  // The most while an operator begins or ends: without what a kernel takes and gives back itself.
  uint64_t peak_between_operators() const { return peak_between_; }

  // Callbacks of LibTorch's operators.
  static std::unique_ptr<at::ObserverContext> Look(const at::RecordFunction&) {
    now->peak_between_ = std::max(now->peak_between_, now->live_);
    return nullptr;
  }
  static void LookAgain(const at::RecordFunction& ended, at::ObserverContext*) { Look(ended); }

 private:
  static constexpr uint8_t kPriority = 1;
  static void Free(void* place) {
    const auto found = now->pieces_.find(place);
    now->live_ -= found->second.first;
    now->pieces_.erase(found);
  }

  static inline CountingHost* now = nullptr;
  c10::Allocator* const real_;
  std::map<void*, std::pair<size_t, c10::DataPtr>> pieces_;
  uint64_t live_ = 0, peak_ = 0, peak_between_ = 0;
};

// A gradient leaves as it comes, as it does into the rCache; that of the tied embedding stays to
// the end.
struct Leaves final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& parameter) override {
    parameter.mutable_grad().reset();
  }
};

struct Measured {
  uint64_t all = 0, between_operators = 0;
};

// The most that a real step has beside parameters and tokens.
Measured MeasuredOnTheHost(const ProfileTask& task) {
  at::set_num_threads(1);
  const c10::ScalarType type = task.dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
  const std::vector<int64_t> sizes{static_cast<int64_t>(task.sequences),
                                   static_cast<int64_t>(task.tokens)};
  const at::Tensor tokens = at::ones(sizes, at::kLong);
  auto model = std::make_unique<Gpt>(task.shape, at::TensorOptions().dtype(type), task.lora);
  InitGpt(model.get(), 3);
  model->SetCheckpointing(task.checkpointing);
  model->SetVocabTiles(task.vocab_tiles);
  for (const auto& item : model->named_parameters()) {
    if (!item.value().requires_grad() || item.key() == "wte.weight") continue;
    torch::autograd::impl::set_post_acc_grad_hooks(item.value(), std::make_unique<Leaves>());
  }
  CountingHost host;
  const at::CallbackHandle looks = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&CountingHost::Look, &CountingHost::LookAgain)
          .scopes({at::RecordScope::FUNCTION}));
  {
    const c10::AutogradState before = c10::AutogradState::get_tls_state();
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const at::Tensor loss = model->Loss(tokens, tokens);
    const at::Tensor kept = loss.detach();
    (loss * 1.0).backward();
    c10::AutogradState::set_tls_state(before);
  }
  at::removeCallback(looks);
  for (const auto& item : model->named_parameters()) item.value().mutable_grad().reset();
  model.reset();  // with the angles of rotary positions
  EXPECT_EQ(host.live(), 0U);
  return {host.peak(), host.peak_between_operators()};
}

GptShape Shape(uint32_t layers, uint32_t heads, uint32_t hidden, uint32_t vocab) {
  return {"test", vocab, 128, layers, heads, hidden};
}

StepProfile Profiled(const ProfileTask& task) {
  Result<StepProfile> profile = ProfileStep(task);
  EXPECT_TRUE(profile.ok()) << profile.status().Format();
  return profile.ok() ? std::move(profile).value() : StepProfile{};
}

// In fp32 all but a norm's sums in backward, which its kernel keeps for itself. In bf16 the host's
// matrix products and its attention take scratch too: what a device's kernels keep for themselves
// is theirs, and not foreseen.
TEST(StepProfile, IsWhatARealStepAsksOfTheHost) {
  std::vector<ProfileTask> tasks;
  for (const bool checkpointing : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      tasks.push_back({Shape(4, 4, 64, 199), {}, dtype, 3, 96, checkpointing});
      tasks.push_back({Shape(2, 2, 128, 997), {}, dtype, 2, 128, checkpointing});
      tasks.push_back({Shape(7, 4, 128, 61), {}, dtype, 1, 64, checkpointing});
    }
  }
  GptShape llama = Shape(3, 4, 64, 199);
  llama.form = ModelForm::kLlama;
  llama.llama = {.kv_heads = 2, .head_size = 16, .mlp = 176};
  for (const bool checkpointing : {false, true})
    tasks.push_back({llama, {}, DType::kF32, 3, 96, checkpointing});

  // Tiles of the vocabulary, as many as make other tensors the largest, and fewer.
  for (const uint32_t tiles : {2U, 10U}) {
    tasks.push_back({llama, {}, DType::kF32, 3, 96, true});
    tasks.back().vocab_tiles = tiles;
    tasks.push_back({Shape(2, 2, 128, 997), {}, DType::kF32, 2, 128, false});
    tasks.back().vocab_tiles = tiles;
  }

  // One expert has all tokens, as its profile foresees.
  GptShape experts = llama;
  experts.moe = {.every = 2, .experts = 1, .top_k = 1, .width = 96, .z = 0.1F};
  tasks.push_back({experts, {}, DType::kF32, 3, 96, false});

  const GptShape adapted = Shape(3, 4, 64, 199);
  tasks.push_back(
      {adapted, MakeLoraShape(adapted, 4, 8, "all").value(), DType::kF32, 2, 64, false});
  for (const ProfileTask& task : tasks) {
    SCOPED_TRACE(std::to_string(task.shape.layers) + " layers, " + NameOf(task.dtype) +
                 (task.checkpointing ? ", checkpointing" : "") + ", " +
                 std::to_string(task.vocab_tiles) + " tiles");
    const double predicted = static_cast<double>(Profiled(task).activation_bytes);
    const Measured measured = MeasuredOnTheHost(task);
    const auto all = static_cast<double>(measured.all),
               tensors = static_cast<double>(measured.between_operators);
    const bool exact = task.dtype == DType::kF32;
    EXPECT_LE(exact ? all : tensors, predicted * (exact ? 1.001 : 1.05));
    EXPECT_LE(all, predicted * 1.1);
    EXPECT_GE(all, predicted * (exact ? 1 : 0.99));
  }
}

TEST(StepProfile, CountsTokensAsBuffers) {
  EXPECT_EQ(Profiled({Shape(1, 1, 8, 16), {}, DType::kF32, 3, 10, false}).buffer_bytes,
            2U * 3 * 10 * 8);
}

TEST(StepProfile, WithCheckpointingGrowsByABlocksInputALayer) {
  const auto profile = [](uint32_t layers) {
    return Profiled({Shape(layers, 2, 64, 97), {}, DType::kBF16, 2, 32, true});
  };
  const StepProfile five = profile(5), six = profile(6);
  EXPECT_EQ(five.boundary_bytes, 2U * 32 * 64 * 2);
  EXPECT_EQ(six.activation_bytes - five.activation_bytes, five.boundary_bytes);
}

// Each matrix of a block and the head multiply every token once in forward and twice in backward;
// attention's own products are within its kernel.
TEST(StepProfile, CountsTheArithmeticOfMatrixProducts) {
  const GptShape shape = Shape(3, 2, 64, 97);
  const StepProfile profile = Profiled({shape, {}, DType::kF32, 2, 32, false});
  const double block = 12.0 * 64 * 64, head = 97.0 * 64, tokens = 2 * 32;
  EXPECT_EQ(profile.arithmetic, 6 * tokens * (3 * block + head));

  GptShape llama = shape;
  llama.form = ModelForm::kLlama;
  llama.llama = {.kv_heads = 1, .head_size = 32, .mlp = 176};
  EXPECT_EQ(Profiled({llama, {}, DType::kF32, 2, 32, false}).arithmetic,
            tokens * (GptFlopsPerToken(llama, 32) - 12.0 * 3 * 64 * 32));
}

// 175 billion parameters: no weight is made, and the calls are those of a model of the same depth
// and any width.
TEST(StepProfile, CostsACallAnOperatorHoweverLargeTheModelIs) {
  const auto wide = [](uint32_t layers, uint32_t hidden) {
    return ProfileTask{{"wide", 50257, 2048, layers, 96, hidden}, {}, DType::kBF16, 8, 2048, true};
  };
  ASSERT_GT(GptParameterCount(wide(96, 12288).shape), 174'000'000'000U);
  const StepProfile large = Profiled(wide(96, 12288));
  const uint64_t small = Profiled(wide(96, 96)).operators, half = Profiled(wide(48, 96)).operators,
                 quarter = Profiled(wide(24, 96)).operators;
  EXPECT_EQ(large.operators, small);
  EXPECT_EQ(small - half, 2 * (half - quarter));
  EXPECT_LT(large.operators, 96U * 400);
  EXPECT_GT(large.activation_bytes, 96 * large.boundary_bytes);
  EXPECT_LE(large.trace.events.size(),
            2 * large.operators + GptParameters(wide(96, 12288).shape).size());
}

TEST(StepProfile, LeavesTheMetaDeviceAsItWas) {
  (void)Profiled({Shape(1, 1, 8, 16), {}, DType::kF32, 1, 4, false});
  const at::TensorOptions meta = at::TensorOptions().device(at::kMeta);
  EXPECT_ANY_THROW(at::embedding(at::empty({4, 4}, meta), at::empty({2}, meta.dtype(at::kLong))))
      << "a kernel has stayed behind";
  EXPECT_EQ(at::empty({4}, meta).numel(), 4);
}

TEST(StepProfile, RefusesAShapeThatIsNone) {
  EXPECT_EQ(ProfileStep({Shape(1, 3, 8, 16), {}, DType::kF32, 1, 4, false}).status().id(),
            ErrorId::kUsageError);
}

}  // namespace step_profile_test
}  // namespace tidepool::trainer
