// Advice on pipelines: what layers cost, the paper's models and machines, and what is said.
#include "trainer/advice/pipeline_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <sstream>
#include <string>

#include "tests/trainer/advice/paper_models.h"
#include "tests/trainer/plan/pipeline/schedule_checker.h"
#include "trainer/advice/pipeline_text.h"

namespace tidepool::trainer {
namespace pipeline_advice_test {

using ::testing::HasSubstr;

TEST(PipelineLayers, AreTheWholeModel) {
  PipelineModel model = QuestionOf(kPaperModels[1], {4}).model;
  model.flops_per_ns = 1000;
  const std::vector<PipelineLayer> layers = LayersOf(model);
  ASSERT_EQ(layers.size(), model.shape.layers);

  uint64_t weights = 0, gradients = 0;
  double forward = 0, backward = 0;
  for (const PipelineLayer& layer : layers) {
    weights += layer.weight_bytes;
    gradients += layer.gradient_bytes;
    forward += static_cast<double>(layer.forward_ns);
    backward += static_cast<double>(layer.backward_ns);
  }

  // The token embedding is at both ends.
  const uint64_t twice = uint64_t{model.shape.vocab} * model.shape.hidden;
  EXPECT_EQ(weights, 2 * (GptParameterCount(model.shape) + twice));
  EXPECT_EQ(gradients, 2 * weights) << "sums are in fp32";
  const double flops =
      GptFlopsPerToken(model.shape, model.tokens) * static_cast<double>(model.tokens) * 2;
  EXPECT_NEAR(forward * 1000 * 3 / flops, 1, 1e-6);
  EXPECT_NEAR(backward / forward, 3, 1e-6) << "forward again, and backward";

  EXPECT_EQ(DifferentLayers(layers), 3U) << "the ends, and all that are between";
  EXPECT_EQ(layers.back().output_bytes, 0U);
  EXPECT_GT(layers.back().backward_work_bytes, layers.front().backward_work_bytes);
}

TEST(PipelineLayers, KeepTheirInputAloneWithCheckpointing) {
  PipelineModel model = QuestionOf(kPaperModels[1], {4}).model;
  const PipelineLayer kept = LayersOf(model)[1];
  model.checkpointing = true;
  const PipelineLayer again = LayersOf(model)[1];
  EXPECT_LT(again.kept_bytes, kept.kept_bytes);
  EXPECT_NEAR(static_cast<double>(again.backward_ns) / static_cast<double>(kept.backward_ns),
              4.0 / 3, 1e-3);
}

// Table 3 of the paper, on its topologies; the way that is taken is the shortest of all, each
// schedule could happen, and ZeRO-3 moves about N times as much.
TEST(PipelineAdvice, IsTheShortestWayForThePapersModels) {
  for (const PaperModel& model : kPaperModels) {
    for (const std::vector<uint32_t>& gpus : {std::vector<uint32_t>{4}, {2, 2}, {1, 3}, {4, 4}}) {
      auto advice = AdvisePipeline(QuestionOf(model, gpus));
      ASSERT_TRUE(advice.ok()) << advice.status().Format();
      const std::string where =
          std::string(model.name) + " on " + advice->question.machine.topology.Name();
      const uint32_t count = advice->task.gpus;
      ASSERT_EQ(advice->ways.size(), 4U) << where;

      for (const PipelineWay& way : advice->ways) {
        EXPECT_EQ(CheckSchedule(way.task, way.schedule), "") << where << ", " << way.name;
        EXPECT_GE(way.schedule.step_ns, advice->best().schedule.step_ns) << where;
        EXPECT_EQ(way.schedule.step_ns, std::min(way.cross_ns, way.sequential_ns)) << where;
        // Nothing is shorter than the program's best at a rate that no GPU exceeds.
        if (way.name == "copies undisturbed") {
          EXPECT_TRUE(way.partition.proven() || count == 8) << where;
          EXPECT_LE(way.partition.step_ns, way.partition.bound_ns / 100 * 102) << where;
          for (const PipelineWay& other : advice->ways)
            EXPECT_LE(way.partition.bound_ns, other.schedule.compute_end_ns) << where;
        }
      }

      const SharedWay& shared = advice->shared;
      EXPECT_TRUE(shared.fits) << where;
      EXPECT_GT(shared.step_ns, advice->best().schedule.step_ns) << where;
      EXPECT_GT(static_cast<double>(shared.bytes_up + shared.bytes_down),
                count / 2.5 *
                    static_cast<double>(advice->best().schedule.bytes_up +
                                        advice->best().schedule.bytes_down))
          << where;
    }
  }
}

// Equation 1: two copies of the 16-bit weights, less those that stay, one of the gradients (in fp32
// here), and the tensors between stages three times up and twice down.
TEST(PipelineAdvice, MovesWhatTheTheorySays) {
  auto advice = AdvisePipeline(QuestionOf(kPaperModels[2], {2, 2}));
  ASSERT_TRUE(advice.ok());
  const PipelineWay& best = advice->best();
  uint64_t up = 0, down = 0;
  const size_t stages = best.task.stages.size(), m = best.task.micro_batches;
  for (size_t j = 0; j < stages; ++j) {
    const Stage& stage = best.task.stages[j];
    up += stage.weight_bytes * (j + 4 < stages ? 2 : 1) +
          m * (2 * stage.input_bytes + stage.output_bytes);
    down += stage.gradient_bytes + m * (stage.output_bytes + stage.input_bytes);
  }
  EXPECT_EQ(best.schedule.bytes_up, up);
  EXPECT_EQ(best.schedule.bytes_down, down);
}

TEST(PipelineAdvice, TakesTheStagesThatAreAskedFor) {
  PipelineQuestion question = QuestionOf(kPaperModels[2], {2, 2});
  question.stages = 12;
  auto advice = AdvisePipeline(question);
  ASSERT_TRUE(advice.ok());
  for (const PipelineWay& way : advice->ways) EXPECT_EQ(way.task.stages.size(), 12U);

  question.stages = 3;
  auto few = AdvisePipeline(question);
  ASSERT_FALSE(few.ok());
  EXPECT_THAT(few.status().Format(), HasSubstr("give at least --pipeline 4, or auto"));
}

TEST(PipelineAdvice, SaysWhenNothingFits) {
  PipelineQuestion question = QuestionOf(kPaperModels[3], {2, 2});
  question.machine.gpu_bytes = uint64_t{4} << 30;
  auto advice = AdvisePipeline(question);
  ASSERT_FALSE(advice.ok());
  EXPECT_EQ(advice.status().id(), ErrorId::kDeviceMemoryShort);
}

TEST(PipelineText, HasARowOfTheTimelineForEachGpuAndLink) {
  auto advice = AdvisePipeline(QuestionOf(kPaperModels[2], {1, 3}));
  ASSERT_TRUE(advice.ok());
  const std::string text = DescribePipeline(*advice, {.pool_bytes = 1});
  EXPECT_THAT(text, HasSubstr("15b: "));
  EXPECT_THAT(text, HasSubstr(" on 4 GPUs (1+3), 4 micro-batches of 1 sequence of 512 tokens"));
  EXPECT_THAT(text, HasSubstr("and nothing is shorter there"));
  EXPECT_EQ(text.find("search "), std::string::npos) << "only with --verbose";

  uint32_t rows = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool row =
        line.starts_with("GPU ") || line.starts_with("up ") || line.starts_with("down ");
    if (!row) continue;
    ++rows;
    ASSERT_EQ(line.size(), 98U) << line;
    const char* marks = line[0] == 'G' ? "0123456789abcdefghij." : "wtg.";
    EXPECT_EQ(line.substr(10).find_first_not_of(marks), std::string::npos) << line;
    if (line[0] == 'G') {
      EXPECT_LT(line.find_first_of("0123456789", 10), line.find_first_of("abcdefghij", 10)) << line;
    }
  }
  EXPECT_EQ(rows, 4U + 2 * 2);

  const std::string verbose = DescribePipeline(*advice, {.verbose = true, .search_ns = 5'000'000});
  EXPECT_THAT(verbose, HasSubstr("search    5 ms for all of this, "));
  EXPECT_THAT(verbose, HasSubstr("one layer a stage: 40 stages of 40 x 1 layers"));
}

TEST(PipelineText, IsJsonForPrograms) {
  auto advice = AdvisePipeline(QuestionOf(kPaperModels[0], {2, 2}));
  ASSERT_TRUE(advice.ok());
  const boost::json::object json = boost::json::parse(PipelineJson(*advice, {})).as_object();
  EXPECT_EQ(json.at("topology").as_string(), "2+2");
  EXPECT_EQ(json.at("ways").as_array().size(), advice->ways.size());
  EXPECT_EQ(json.at("step_ns").as_int64(), advice->best().schedule.step_ns);
  int64_t layers = 0;
  for (const auto& count : json.at("ways").as_array()[0].at("layers").as_array())
    layers += count.as_int64();
  EXPECT_EQ(layers, 64);
}

}  // namespace pipeline_advice_test
}  // namespace tidepool::trainer
