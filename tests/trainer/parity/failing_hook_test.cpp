// A failing hook: every failure inside an operator hook ends the step unsealed with its cause,
// never in a crash or a silent step.
#include <cstring>
#include <thread>
#include <utility>

#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "base/units.h"
#include "tests/fakes/memory_chunk_service.h"
#include "trainer/engine/engine.h"
#include "trainer/layout/build_layout.h"
#include "trainer/engine/torch_errors.h"

namespace tidepool::trainer {
namespace failing_hook_test {

// Passes everything on until it is told to fail; then every call of the chosen kind fails with the
// chosen error.
class FailingService final : public client::ChunkService {
 public:
  FailingService(client::ChunkService* real, tidepool::testing::MemoryServer* server)
      : real_(real), server_(server) {}
  void FailFetches(ErrorId id, uint64_t after) { fetch_error_ = id, fetches_left_ = after; }
  void FailWaits(ErrorId id, uint64_t after) { wait_error_ = id, waits_left_ = after; }
  void FailSubmissions(ErrorId id, uint64_t after) { submit_error_ = id, submits_left_ = after; }
  uint64_t steps_ended() const { return steps_ended_; }

  const client::Attachment& attachment() const override { return real_->attachment(); }
  Result<client::Ticket> StartPutWeights(const client::Range& range) override {
    return real_->StartPutWeights(range);
  }
  Result<client::Ticket> StartFetch(const client::Range& range,
                                    const client::Wanted& wanted) override {
    if (Due(fetch_error_, &fetches_left_)) return Status(fetch_error_, "the fetch failed");
    return real_->StartFetch(range, wanted);
  }
  Result<client::Ticket> StartSubmitGradient(const client::Range& range, Version version,
                                             uint32_t micro_batch) override {
    if (Due(submit_error_, &submits_left_)) return Status(submit_error_, "the submission failed");
    return real_->StartSubmitGradient(range, version, micro_batch);
  }
  Result<client::Ticket> StartEndStep(const client::StepEnd& end) override {
    ++steps_ended_;
    Status ended = server_->EndStep(1);
    if (!ended.ok()) return ended;
    sealed_ = end.version + 1;
    return kEndTicket;
  }
  bool Test(client::Ticket ticket) override { return real_->Test(ticket); }
  Result<client::Outcome> Wait(client::Ticket ticket) override {
    if (Due(wait_error_, &waits_left_)) return Status(wait_error_, "the wait failed");
    if (ticket == kEndTicket) {
      client::Outcome outcome;
      outcome.version = sealed_;
      return outcome;
    }
    return real_->Wait(ticket);
  }
  Status DeclareSchedule(std::span<const ChunkId> order) override {
    return real_->DeclareSchedule(order);
  }
  Status SaveWeights(int dir_fd, const std::string& name, Version version) override {
    return real_->SaveWeights(dir_fd, name, version);
  }
  Status Detach() override { return real_->Detach(); }

 private:
  static bool Due(ErrorId id, uint64_t* left) {
    if (id == ErrorId::kNone) return false;
    if (*left > 0) --*left;
    return *left == 0;
  }
  static constexpr client::Ticket kEndTicket = UINT64_MAX;

  client::ChunkService* real_;
  tidepool::testing::MemoryServer* server_;
  Version sealed_ = 0;
  ErrorId fetch_error_ = ErrorId::kNone, wait_error_ = ErrorId::kNone,
          submit_error_ = ErrorId::kNone;
  uint64_t fetches_left_ = 0, waits_left_ = 0, submits_left_ = 0, steps_ended_ = 0;
};

// Four linear layers of 32 x 32, one chunk each, trained over an in-memory server.
class FailingHook : public ::testing::Test {
 protected:
  static constexpr int kLayers = 4, kWidth = 32;

  void SetUp() override {
    at::set_num_threads(1);
    Lay(/*to_a_chunk=*/1);
  }

  // The first `frozen` layers are not trained.
  void Lay(uint64_t to_a_chunk, int frozen = 0) {
    weights_.clear();
    std::vector<ParameterNote> notes;
    for (int i = 0; i < kLayers; ++i) {
      ParameterNote note;
      note.name = "w" + std::to_string(i);
      note.dims = {kWidth, kWidth};
      note.frozen = i < frozen;
      notes.push_back(note);
      weights_.push_back(torch::zeros({kWidth, kWidth}, torch::requires_grad(i >= frozen)));
    }
    LayoutOptions options;
    options.chunk_bytes = to_a_chunk * kWidth * kWidth * sizeof(float);
    auto layout = BuildLayout(notes, options);
    ASSERT_TRUE(layout.ok()) << layout.status().Format();
    layout_ = layout.value();
    // The engine takes them in the layout's order, in which frozen ones come last.
    tensors_.clear();
    for (const ParameterPlace& place : layout_.parameters) tensors_.push_back(weights_[place.note]);
  }

  static float InitialValue(size_t element) { return static_cast<float>(element % 7) * 0.01f; }

  // An engine with `blocks` blocks, its weights loaded.
  void Build(uint64_t blocks, const EngineOptions& options = {}, uint64_t delay_max = 3) {
    server_ = std::make_unique<tidepool::testing::MemoryServer>(&layout_);
    memory_ = std::make_unique<tidepool::testing::MemoryChunkService>(
        server_.get(), 0, layout_.RcacheBytes(0, blocks), /*seed=*/1, delay_max);
    service_ = std::make_unique<FailingService>(memory_.get(), server_.get());
    auto engine =
        TrainingEngine::Create(layout_, options, {service_.get(), {nullptr}, tensors_, &clock_});
    ASSERT_TRUE(engine.ok()) << engine.status().Format();
    engine_ = std::move(engine).value();
    const Status loaded = engine_->LoadWeights([](ParameterId, std::span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = InitialValue(i);
      return Status();
    });
    ASSERT_TRUE(loaded.ok()) << loaded.Format();
  }

  at::Tensor Loss() {
    at::Tensor x = torch::ones({2, kWidth});
    for (const at::Tensor& w : weights_) x = torch::tanh(torch::matmul(x, w));
    return x.pow(2).mean();
  }

  // One step; the error that ended it, or ok.
  Status Step(Version version) {
    return Step(version, [this] { return Loss(); });
  }
  Status Step(Version version, const LossFunction& function) {
    Result<double> loss = engine_->TrainMicroBatch(version, 0, function, 1.0);
    if (!loss.ok()) return loss.status();
    client::StepEnd end;
    end.version = version;
    end.learning_rate = 1e-3f;
    return engine_->EndStep(end).status();
  }

  void ExpectAbandoned(ErrorId cause) {
    ExpectAbandonedBy(cause, [this] { return Loss(); });
  }
  void ExpectAbandonedBy(ErrorId cause, const LossFunction& loss) {
    const Status first = Step(0, loss);
    EXPECT_EQ(first.id(), cause) << first.Format();
    EXPECT_EQ(service_->steps_ended(), 0u) << "a failed step was ended";
    EXPECT_EQ(Step(0).id(), cause) << "a later step must say the same";
    EXPECT_EQ(service_->steps_ended(), 0u);
  }

  SteadyClock clock_;
  ChunkLayout layout_;
  std::vector<at::Tensor> weights_, tensors_;  // as used; by ParameterId
  std::unique_ptr<tidepool::testing::MemoryServer> server_;
  std::unique_ptr<tidepool::testing::MemoryChunkService> memory_;
  std::unique_ptr<FailingService> service_;
  std::unique_ptr<TrainingEngine> engine_;
};

TEST_F(FailingHook, NothingFailsWithoutAFault) {
  Build(3);
  for (Version version = 0; version < 3; ++version) {
    const Status step = Step(version);
    EXPECT_TRUE(step.ok()) << step.Format();
  }
  EXPECT_EQ(service_->steps_ended(), 3u);
}

TEST_F(FailingHook, ServerGoneInForward) {
  Build(3);
  service_->FailFetches(ErrorId::kServerGone, 2);
  ExpectAbandoned(ErrorId::kServerGone);
}

TEST_F(FailingHook, ServerGoneInBackward) {
  Build(2);
  service_->FailFetches(ErrorId::kServerGone, kLayers + 1);  // forward fetches each chunk once
  ExpectAbandoned(ErrorId::kServerGone);
}

TEST_F(FailingHook, WaitTimedOut) {
  Build(3);
  service_->FailWaits(ErrorId::kWaitTimeout, 3);
  ExpectAbandoned(ErrorId::kWaitTimeout);
}

TEST_F(FailingHook, SubmissionRefused) {
  Build(3);
  service_->FailSubmissions(ErrorId::kPeerLost, 2);
  ExpectAbandoned(ErrorId::kPeerLost);
}

TEST_F(FailingHook, NoBlockForAnOperatorsChunks) {
  Build(1);
  const Result<double> loss = engine_->TrainMicroBatch(
      0, 0, [this] { return torch::matmul(weights_[0], weights_[1]).sum(); }, 1.0);
  EXPECT_EQ(loss.status().id(), ErrorId::kRcacheTooSmall) << loss.status().Format();
  EXPECT_NE(loss.status().Format().find(std::to_string(layout_.RcacheBytes(0, 2))),
            std::string::npos)
      << "the error must name the smallest size that works: " << loss.status().Format();
}

// Backward reads the first weight once more after its gradient has come: no gradient flows through
// the early use, so nothing waits for it.
at::Tensor LateRead(const std::vector<at::Tensor>& weights) {
  const at::Tensor early = torch::matmul(
      torch::matmul(torch::ones({2, weights[0].size(0)}), weights[1]), weights[0].detach());
  const at::Tensor x = torch::matmul(torch::tanh(early), weights[0]);
  return torch::matmul(torch::tanh(x), torch::matmul(weights[2], weights[3])).pow(2).mean();
}

TEST_F(FailingHook, AParameterReadAfterItsGradientIsNamedWithItsReader) {
  Lay(/*to_a_chunk=*/2);
  EngineOptions options;
  options.cache.separate_while_recording = false;
  Build(2, options);
  const Result<double> loss = engine_->TrainMicroBatch(
      0, 0, [this] { return LateRead(weights_); }, 1.0);
  EXPECT_EQ(loss.status().id(), ErrorId::kTensorStateIllegal);
  for (const char* text : {"parameter w0 after its gradient",
                           "operator aten::", "declare the parameter as used several times"}) {
    EXPECT_NE(loss.status().Format().find(text), std::string::npos) << loss.status().Format();
  }
  EXPECT_EQ(service_->steps_ended(), 0u);
}

// Found in the recording step, or where the chunk has been handed in and is fetched again, such a
// model trains as without us.
TEST_F(FailingHook, AParameterReadAfterItsGradientIsRightWhereItCanBe) {
  const std::pair<uint64_t, bool> cases[] = {{2, true}, {1, true}, {1, false}};
  for (const auto& [to_a_chunk, recorded_apart] : cases) {
    SCOPED_TRACE(std::to_string(to_a_chunk) +
                 " to a chunk, kept apart while recording: " + std::to_string(recorded_apart));
    Lay(to_a_chunk);
    std::vector<at::Tensor> plain;
    for (const at::Tensor& weight : weights_) plain.push_back(torch::empty_like(weight));
    for (at::Tensor& weight : plain) {
      for (int64_t i = 0; i < weight.numel(); ++i)
        weight.mutable_data_ptr<float>()[i] = InitialValue(static_cast<size_t>(i));
      weight.requires_grad_(true);
    }
    EngineOptions options;
    options.cache.separate_while_recording = recorded_apart;
    Build(to_a_chunk == 2 ? 2 : 3, options);
    for (Version version = 0; version < 3; ++version) {
      const Status step = Step(version, [this] { return LateRead(weights_); });
      ASSERT_TRUE(step.ok()) << step.Format();
      LateRead(plain).backward();
      const torch::NoGradGuard no_grad;
      for (at::Tensor& weight : plain) weight.sub_(std::exchange(weight.mutable_grad(), {}));
    }
    for (int i = 0; i < kLayers; ++i) {
      const ParameterPlace& place = layout_.parameters[layout_.of_note[static_cast<size_t>(i)]];
      const float* ours = server_->values[place.chunk].data() + place.element_begin;
      EXPECT_EQ(std::memcmp(ours, plain[static_cast<size_t>(i)].const_data_ptr<float>(),
                            place.element_count * sizeof(float)),
                0)
          << i;
    }
  }
}

TEST_F(FailingHook, AParameterUsedTwiceWithoutSayingSo) {
  Build(4);
  EngineOptions options;
  options.cache.separate_while_recording = false;
  auto engine =
      TrainingEngine::Create(layout_, options, {service_.get(), {nullptr}, tensors_, &clock_});
  ASSERT_TRUE(engine.ok());
  // Two backward passes over the same parameter in one micro-batch: its first gradient lies where
  // the second one needs the parameter.
  const Result<double> loss = engine.value()->TrainMicroBatch(
      0, 0,
      [this] {
        torch::matmul(torch::ones({1, kWidth}), weights_[0]).sum().backward();
        return torch::matmul(torch::ones({1, kWidth}), weights_[0]).sum();
      },
      1.0);
  EXPECT_FALSE(loss.ok());
}

void ExpectSaysFrozen(const Status& status) {
  EXPECT_EQ(status.id(), ErrorId::kUsageError) << status.Format();
  for (const char* text : {"the frozen parameter w1 asks for a gradient", "where: chunk ",
                           "fix:   call requires_grad_(false)"}) {
    EXPECT_NE(status.Format().find(text), std::string::npos) << status.Format();
  }
}

// Two of four layers are frozen.
TEST_F(FailingHook, AFrozenParameterThatAsksForAGradientIsNamed) {
  Lay(/*to_a_chunk=*/1, /*frozen=*/2);
  Build(3);
  ASSERT_EQ(layout_.TrainedChunks(), 2U);
  std::vector<std::vector<float>>& values = server_->values;
  for (ChunkId chunk = 2; chunk < 4; ++chunk) values[chunk].assign(values[chunk].size(), 0.05F);
  const auto before = values;
  for (Version version = 0; version < 2; ++version) ASSERT_TRUE(Step(version).ok());
  for (ChunkId chunk = 0; chunk < 4; ++chunk)
    EXPECT_EQ(values[chunk] == before[chunk], chunk >= 2) << "chunk " << chunk;
  weights_[1].requires_grad_(true);
  const Status first = Step(2);
  ExpectSaysFrozen(first);
  weights_[1].requires_grad_(false);
  ExpectSaysFrozen(Step(2));
  EXPECT_EQ(service_->steps_ended(), 2U);

  Lay(1, 2);
  weights_[1].requires_grad_(true);
  ExpectSaysFrozen(
      TrainingEngine::Create(layout_, {}, {service_.get(), {nullptr}, tensors_, &clock_}).status());
}

void ExpectSaysThread(const Status& status) {
  EXPECT_EQ(status.id(), ErrorId::kInternal) << status.Format();
  EXPECT_NE(status.Format().find("ran on another thread than the trainer's"), std::string::npos)
      << status.Format();
}

// What LibTorch's device threads would do: run an operator with this thread's state.
TEST_F(FailingHook, AnOperatorOnAnotherThreadIsNoticedAndTouchesNothing) {
  Build(3);
  const auto elsewhere = [this] {
    const at::ThreadLocalState state;
    std::thread([&state] {
      const at::ThreadLocalStateGuard guard(state);
      EXPECT_EQ((torch::ones({2}) + 1).sum().item<float>(), 4.0f);
    }).join();
    return Loss();
  };
  ExpectSaysThread(Step(0, elsewhere));
  ExpectSaysThread(Step(0));
  EXPECT_EQ(service_->steps_ended(), 0u);
}

TEST_F(FailingHook, AGradientOnAnotherThreadIsNoticed) {
  Build(3);
  const auto elsewhere = [this] {
    std::thread([this] { weights_[1].view({-1}).select(0, 0).backward(); }).join();
    return Loss();
  };
  ExpectSaysThread(Step(0, elsewhere));
  EXPECT_EQ(service_->steps_ended(), 0u);
}

TEST_F(FailingHook, BackwardStaysOnThisThreadAndTheCallersSettingComesBack) {
  Build(3);
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  ASSERT_TRUE(state.get_multithreading_enabled());
  bool within = true;
  const auto loss = [&] {
    within = c10::AutogradState::get_tls_state().get_multithreading_enabled();
    return Loss();
  };
  EXPECT_TRUE(Step(0, loss).ok());
  EXPECT_FALSE(within);
  EXPECT_TRUE(state.get_multithreading_enabled());
}

// What was fetched ahead for layers that it does not come to.
TEST_F(FailingHook, AShortEvaluationLeavesNothingInFlight) {
  Build(/*blocks=*/3, {}, /*delay_max=*/1000);
  for (int pass = 0; pass < 2; ++pass)
    ASSERT_TRUE(engine_->Evaluate(0, [this] { return Loss(); }).ok());
  const uint64_t before = memory_->requests();
  const auto first_two = [this] {
    return torch::matmul(torch::matmul(torch::ones({2, kWidth}), weights_[0]), weights_[1]).mean();
  };
  ASSERT_TRUE(engine_->Evaluate(0, first_two).ok());
  EXPECT_GT(memory_->requests(), before) << "something was fetched ahead";
  EXPECT_EQ(memory_->in_flight(), 0u);
}

TEST_F(FailingHook, LossesAreReadWhenTheyAreAskedFor) {
  EngineOptions options;
  options.micro_batches = 2;
  Build(3, options);
  const auto half = [this] { return Loss() / 2; };
  ASSERT_TRUE(engine_
                  ->RunMicroBatch(
                      0, 0, [this] { return Loss(); }, 1.0)
                  .ok());
  ASSERT_TRUE(engine_->RunMicroBatch(0, 1, half, 1.0).ok());
  const Result<std::vector<double>> losses = engine_->TakeLosses();
  ASSERT_TRUE(losses.ok()) << losses.status().Format();
  ASSERT_EQ(losses.value().size(), 2u);
  EXPECT_GT(losses.value()[0], 0);
  EXPECT_EQ(losses.value()[0], 2 * losses.value()[1]);
  EXPECT_TRUE(engine_->TakeLosses().value().empty());
}

TEST_F(FailingHook, ADevicesWantOfMemoryAndItsErrorsKeepTheirKind) {
  EXPECT_TRUE(CatchTorch([] {}).ok());
  const Status full = CatchTorch([] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2.00 GiB.");
  });
  EXPECT_EQ(full.id(), ErrorId::kDeviceMemoryShort);
  EXPECT_EQ(full.what(), "LibTorch: CUDA out of memory. Tried to allocate 2.00 GiB.");
  const Status broken = CatchTorch([] {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700,
                                "CUDA error: illegal\naddress");
  });
  EXPECT_EQ(broken.id(), ErrorId::kCudaFailed);
  EXPECT_EQ(broken.what(), "LibTorch: CUDA error: illegal");
  Build(3);
  const auto loss = [this] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory.");
    return Loss();
  };
  ExpectAbandonedBy(ErrorId::kDeviceMemoryShort, loss);
}

// A device of LibTorch that has no memory at all: what the binding does beside memory is alike on
// all.
TEST_F(FailingHook, ParametersOfADeviceKeepItWhereverTheyArePlaced) {
  const auto options = torch::dtype(torch::kFloat32).device(torch::kMeta);
  const std::vector<at::Tensor> tensors = {torch::empty({4, 4}, options),
                                           torch::empty({8}, options)};
  auto binding = StorageBinding::Bind(
      {64, 64}, tensors, {{.chunk = 0, .byte_begin = 0}, {.chunk = 1, .byte_begin = 32}});
  ASSERT_TRUE(binding.ok()) << binding.status().Format();
  std::byte block[64];
  binding.value()->Place(1, block);
  EXPECT_TRUE(tensors[1].is_meta());
  EXPECT_EQ(tensors[1].storage().data(), block);
  EXPECT_EQ(tensors[1].storage().device().type(), c10::DeviceType::Meta);
  EXPECT_EQ(binding.value()->ParameterOf(tensors[1].slice(0, 2)), 1u);
  EXPECT_EQ(StorageBinding::Bind({64, 64}, {tensors[0], torch::empty({8})}, {{0, 0}, {1, 0}})
                .status()
                .id(),
            ErrorId::kInternal);
}

}  // namespace failing_hook_test
}  // namespace tidepool::trainer
