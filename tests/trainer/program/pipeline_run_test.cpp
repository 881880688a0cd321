// `trainer launch -- run --pipeline` from outside: the bytes that every step reports are those of
// the theory, in all, by stage and by kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace pipeline_run_test {

constexpr uint64_t kBatches = 3, kElement = 2;  // bf16
constexpr uint64_t kSequences = 4, kTokens = 32, kHidden = 64, kVocab = 256;

class PipelineRun : public TrainerRuns {
 protected:
  std::vector<boost::json::object> Steps(const std::string& name) const {
    std::ifstream file(Out(name) + "/metrics.jsonl");
    std::vector<boost::json::object> steps;
    for (std::string line; std::getline(file, line);)
      steps.push_back(boost::json::parse(line).as_object());
    return steps;
  }
};

uint64_t In(const boost::json::object& object, const char* name) {
  return object.at(name).to_number<uint64_t>();
}

class PipelineRunOf : public PipelineRun, public ::testing::WithParamInterface<uint64_t> {};

// Two ranks a column. A batch is divided among columns, so that boundary tensors are as many bytes.
TEST_P(PipelineRunOf, ColumnsMovesInEveryStepWhatTheTheorySays) {
  const uint64_t columns = GetParam();
  Flags flags{{"--standalone", ""},  {"--steps", "4"},    {"--dtype", "bf16"},
              {"--context", "32"},   {"--batch", "4"},    {"--accumulate", "3"},
              {"--eval-every", "0"}, {"--pipeline", "2"}, {"--columns", std::to_string(columns)},
              {"--job", "pipeline"}};
  std::vector<std::string> words = Words("pipeline", flags);
  words.insert(words.begin(), {"launch", "-n", std::to_string(2 * columns), "--"});
  const auto trainer = Start(words);
  ExpectDone(trainer.get());

  const std::vector<boost::json::object> steps = Steps("pipeline");
  ASSERT_EQ(steps.size(), 4U);
  const uint64_t boundary = kBatches * kSequences * kTokens * kHidden * kElement,
                 embedding = columns * kVocab * kHidden * kElement;
  for (const boost::json::object& step : steps) {
    SCOPED_TRACE(boost::json::serialize(step));
    EXPECT_EQ(In(step, "tokens"), kBatches * kSequences * kTokens);
    EXPECT_EQ(In(step, "bytes_boundary"), boundary);
    // There and back, the embedding, and a part of its gradient for each micro-batch.
    EXPECT_EQ(In(step, "bytes_linked"), 2 * boundary + (1 + kBatches) * embedding);
    EXPECT_EQ(In(step, "bytes_linked"), In(step, "bytes_linked_theory"));
    EXPECT_EQ(In(step, "bytes_h2d"), In(step, "bytes_h2d_theory"));
    EXPECT_EQ(In(step, "bytes_d2h"), In(step, "bytes_d2h_theory"));

    const boost::json::array& stages = step.at("groups").as_array();
    ASSERT_EQ(stages.size(), 2U);
    uint64_t handed_in = 0;
    for (const boost::json::value& stage : stages) {
      const boost::json::object& bytes = stage.at("bytes").as_object();
      EXPECT_EQ(bytes, stage.at("theory").as_object());
      EXPECT_GT(In(bytes, "handed_in"), 0U);
      // Weights are half as wide as their sums, and come twice at most.
      EXPECT_LE(In(bytes, "fetched"), In(bytes, "handed_in"));
      EXPECT_EQ(In(bytes, "gathered"), (columns - 1) * In(bytes, "fetched"));
      EXPECT_EQ(In(bytes, "scattered"), (columns - 1) * In(bytes, "handed_in"));
      EXPECT_EQ(In(bytes, "reduced"), 0U);
      handed_in += In(bytes, "handed_in");
    }
    EXPECT_EQ(handed_in, In(step, "bytes_d2h"));
  }
}

INSTANTIATE_TEST_SUITE_P(Columns, PipelineRunOf, ::testing::Values(1, 2));

}  // namespace pipeline_run_test
}  // namespace tidepool::testing
