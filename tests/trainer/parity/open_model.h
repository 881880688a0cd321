// OpenModel: four layers over the in-memory service, whose forward and backward the test runs; and
// the same model in plain LibTorch.
//
// One thread. The server's rule is that a step takes the gradient off, so that the two can be
// compared bit by bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tests/fakes/memory_chunk_service.h"
#include "tests/trainer/parity/callers_backward.h"
#include "trainer/engine/engine.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace open_steps_test {

inline constexpr int64_t kWidth = 32;
inline constexpr uint64_t kLayers = 4;
using Values = std::vector<std::vector<float>>;  // by layer

// The in-memory service, which also ends steps.
class EndingService final : public tidepool::testing::MemoryChunkService {
 public:
  EndingService(tidepool::testing::MemoryServer* server, uint64_t rcache_bytes,
                uint32_t micro_batches)
      : MemoryChunkService(server, /*rank=*/0, rcache_bytes, /*seed=*/1, /*delay_max=*/3),
        micro_batches_(micro_batches) {}

  Result<client::Ticket> StartEndStep(const client::StepEnd&) override {
    if (fail_ends) return Status(ErrorId::kServerGone, "the server is gone");
    TP_RETURN_IF_ERROR(server_->EndStep(micro_batches_));
    return kEnded;
  }
  Result<client::Outcome> Wait(client::Ticket ticket) override {
    if (ticket != kEnded) return MemoryChunkService::Wait(ticket);
    client::Outcome outcome;
    outcome.version = server_->version;
    return outcome;
  }

  bool fail_ends = false;

 private:
  static constexpr client::Ticket kEnded = UINT64_MAX;
  const uint32_t micro_batches_;
};

// What one model is like.
struct Choice {
  uint64_t blocks = 2;
  uint32_t micro_batches = 1;
  size_t seed = 0;
};

// Both models begin with it.
inline float InitialValue(size_t element, size_t layer, size_t seed) {
  return static_cast<float>((element * 5 + layer * 3 + seed) % 11) * 0.02f - 0.08f;
}

// Uses each of the weights once, in order.
inline at::Tensor LossOf(const std::vector<at::Tensor>& weights) {
  at::Tensor x = torch::ones({2, kWidth});
  for (const at::Tensor& weight : weights) x = torch::tanh(torch::matmul(x, weight));
  return x.pow(2).mean();
}

// Four layers of 32 x 32, a chunk each, and steps that are open.
class OpenModel {
 public:
  explicit OpenModel(const Choice& choice = {}) {
    std::vector<ParameterNote> notes;
    for (size_t i = 0; i < kLayers; ++i) {
      notes.push_back({.name = "w" + std::to_string(i), .dims = {kWidth, kWidth}});
      weights.push_back(torch::zeros({kWidth, kWidth}, torch::requires_grad()));
    }
    LayoutOptions options;
    options.chunk_bytes = kWidth * kWidth * sizeof(float);
    layout_ = BuildLayout(notes, options).value();
    server_ = std::make_unique<tidepool::testing::MemoryServer>(&layout_);
    service = std::make_unique<EndingService>(server_.get(), layout_.RcacheBytes(0, choice.blocks),
                                              choice.micro_batches);

    EngineOptions engine_options;
    engine_options.micro_batches = choice.micro_batches;
    engine_options.cache.separate_while_recording = false;  // as trainer/module/module_job.cpp
    EngineParts parts{service.get(), {nullptr}, weights, &clock_};
    parts.gradients = GradientTeller::kCaller;
    engine = std::move(TrainingEngine::Create(layout_, engine_options, std::move(parts))).value();
    const Status loaded = engine->LoadWeights([&](ParameterId id, std::span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = InitialValue(i, id, choice.seed);
      return Status();
    });
    EXPECT_TRUE(loaded.ok()) << loaded.Format();
    steps = engine->Open(/*sealed=*/0);
    for (ParameterId id = 0; id < kLayers; ++id) TellArrivals(weights[id], id, steps);
  }

  at::Tensor Loss() const { return LossOf(weights); }
  // Gradients are not recorded.
  float FreeLoss() const {
    const torch::NoGradGuard no_grad;
    return Loss().item<float>();
  }
  Status EndStep() { return steps->EndStep({}).status(); }
  // Forward, backward and the end of a step.
  Status Step() {
    Loss().backward();
    return EndStep();
  }
  // As the server has them.
  const Values& values() const { return server_->values; }
  uint64_t submits() const { return server_->submits; }
  bool has_gradients() const {
    return std::any_of(weights.begin(), weights.end(),
                       [](const at::Tensor& weight) { return weight.grad().defined(); });
  }

  std::vector<at::Tensor> weights;
  std::unique_ptr<EndingService> service;
  std::unique_ptr<TrainingEngine> engine;
  OpenSteps* steps = nullptr;

 private:
  SteadyClock clock_;
  ChunkLayout layout_;
  std::unique_ptr<tidepool::testing::MemoryServer> server_;
};

// The same model in plain LibTorch, with the server's rule.
class PlainModel {
 public:
  explicit PlainModel(size_t seed = 0) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      at::Tensor weight = torch::empty({kWidth, kWidth});
      for (int64_t i = 0; i < weight.numel(); ++i)
        weight.mutable_data_ptr<float>()[i] = InitialValue(static_cast<size_t>(i), layer, seed);
      weights.push_back(weight.requires_grad_(true));
    }
  }
  float FreeLoss() const { return LossOf(weights).item<float>(); }
  void Step() {
    LossOf(weights).backward();
    TakeGradientsOff();
  }
  void TakeGradientsOff() {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& weight : weights) weight.sub_(std::exchange(weight.mutable_grad(), {}));
  }
  Values values() const {
    Values values;
    for (const at::Tensor& weight : weights) {
      const float* data = weight.const_data_ptr<float>();
      values.emplace_back(data, data + weight.numel());
    }
    return values;
  }

  std::vector<at::Tensor> weights;
};

// True when all values have the same bits.
inline bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.size() == y.size() &&
                  std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
         });
}

}  // namespace open_steps_test
}  // namespace tidepool::trainer
