// A model that declares no order: one trace-only forward finds it, and chunks of parameters in that
// order are fetched less often.
#include <algorithm>
#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/fakes/memory_chunk_service.h"
#include "trainer/engine/engine.h"
#include "trainer/hooks/use_order.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace use_order_test {

constexpr int64_t kWidth = 32;
// Registered in this order; the numbers say when forward uses them. The last one is never used.
const std::vector<uint32_t> kUsedAs{3, 0, 5, 1, 4, 2, 6};

class UseOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    for (size_t i = 0; i < kUsedAs.size(); ++i)
      weights_.push_back(torch::ones({kWidth, kWidth}, torch::requires_grad()));
  }

  at::Tensor Loss() const {
    at::Tensor x = torch::ones({2, kWidth});
    for (uint32_t use = 0; use < 6; ++use) {
      const size_t which =
          static_cast<size_t>(std::find(kUsedAs.begin(), kUsedAs.end(), use) - kUsedAs.begin());
      x = torch::tanh(torch::linear(x, weights_[which].t().t()));
    }
    return x.sum();
  }

  struct Course {
    double loss = 0;
    uint64_t fetches = 0;
  };
  // Five forwards with two parameters a chunk and room for two of four chunks; `order`: of the
  // notes.
  Course Run(const std::vector<uint32_t>& order) {
    std::vector<ParameterNote> notes;
    std::vector<at::Tensor> parameters;
    for (const uint32_t which : order) {
      notes.push_back({.name = "w" + std::to_string(kUsedAs[which]), .dims = {kWidth, kWidth}});
      parameters.push_back(weights_[which]);
    }
    LayoutOptions options;
    options.chunk_bytes = 2 * kWidth * kWidth * sizeof(float);
    const ChunkLayout layout = BuildLayout(notes, options).value();
    testing::MemoryServer server(&layout);
    testing::MemoryChunkService service(&server, 0, layout.RcacheBytes(0, 2), /*seed=*/1,
                                        /*delay_max=*/2);
    const auto engine =
        std::move(TrainingEngine::Create(layout, {}, {&service, {nullptr}, parameters, &clock_}))
            .value();
    const Status loaded = engine->LoadWeights([&](ParameterId id, std::span<float> values) {
      const uint32_t which = order[layout.parameters[id].note];
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((i + 5 * which) % 7) * 0.02f - 0.05f;
      return Status();
    });
    EXPECT_TRUE(loaded.ok()) << loaded.Format();
    Course course;
    for (int pass = 0; pass < 5; ++pass) {
      const Result<double> loss = engine->Evaluate(0, [this] { return Loss(); });
      EXPECT_TRUE(loss.ok()) << loss.status().Format();
      if (loss.ok()) course.loss = loss.value();
    }
    course.fetches = engine->cache().counters().misses + engine->cache().counters().prefetches;
    return course;
  }

  SteadyClock clock_;
  std::vector<at::Tensor> weights_;
};

TEST_F(UseOrder, IsThatOfForwardAndUnusedOnesComeLast) {
  const auto order = RecordUseOrder(weights_, [this] { Loss(); });
  ASSERT_TRUE(order.ok()) << order.status().Format();
  EXPECT_EQ(order.value(), (std::vector<uint32_t>{1, 3, 5, 0, 4, 2, 6}));
}

TEST_F(UseOrder, MakesChunksThatAreFetchedLessOften) {
  const Course registered = Run({0, 1, 2, 3, 4, 5, 6});
  const Course recorded = Run(RecordUseOrder(weights_, [this] { Loss(); }).value());
  EXPECT_EQ(recorded.loss, registered.loss);
  EXPECT_NE(recorded.loss, 0);
  EXPECT_LT(recorded.fetches, registered.fetches);
}

TEST_F(UseOrder, AForwardThatFailsIsAnErrorAndTheNextOneWorks) {
  const auto failed = RecordUseOrder(weights_, [] { throw std::runtime_error("no such layer"); });
  EXPECT_EQ(failed.status().id(), ErrorId::kLibraryFailed);
  EXPECT_NE(failed.status().what().find("no such layer"), std::string::npos);
  EXPECT_TRUE(RecordUseOrder(weights_, [this] { Loss(); }).ok());
}

}  // namespace use_order_test
}  // namespace tidepool::trainer
