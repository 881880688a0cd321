// The program that is written for solvers: every row of it holds for the partition that was found,
// with the step that was said, and a shorter step breaks a row. (tests/python/test_pipeline_lp.py
// asks a solver for the optimum.)
#include "trainer/plan/pipeline/partition_lp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "tests/trainer/plan/pipeline/random_pipeline.h"
#include "trainer/plan/pipeline/stage_partition.h"
#include "trainer/plan/pipeline/stage_times.h"

namespace tidepool::trainer {
namespace partition_lp_test {

using Values = std::map<std::string, double>;

constexpr double kTolerance = 1e-9;  // milliseconds

struct Row {
  std::string name, relation;
  std::vector<std::pair<double, std::string>> terms;
  double right = 0;

  double Left(const Values& values) const {
    double left = 0;
    for (const auto& [factor, variable] : terms) {
      const auto found = values.find(variable);
      left += factor * (found == values.end() ? 0 : found->second);
    }
    return left;
  }
  bool Holds(const Values& values) const {
    const double left = Left(values);
    if (relation == "=") return std::abs(left - right) <= kTolerance;
    return relation == ">=" ? left >= right - kTolerance : left <= right + kTolerance;
  }
};

struct Program {
  Row objective;
  std::vector<Row> rows;

  explicit Program(const std::string& text) {
    std::istringstream words(text.substr(text.find("Minimize")));
    std::string word;
    double sign = 1;
    Row row;
    while (words >> word && word != "Bounds") {
      if (word == "Minimize") continue;
      if (word == "Subject") {
        objective = std::exchange(row, {});
        words >> word;
      } else if (word.back() == ':') {
        row.name = word;
      } else if (word == "+" || word == "-") {
        sign = word == "+" ? 1 : -1;
        double factor = 0;
        std::string variable;
        words >> factor >> variable;
        row.terms.emplace_back(sign * factor, variable);
      } else {
        row.relation = word;
        words >> row.right;
        rows.push_back(std::exchange(row, {}));
      }
    }
  }

  std::string FirstBroken(const Values& values) const {
    const auto broken =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return !row.Holds(values); });
    return broken == rows.end() ? "" : broken->name;
  }
};

std::string Name(const char* of, size_t a, size_t b) {
  return std::string(of) + "_" + std::to_string(a + 1) + "_" + std::to_string(b + 1);
}
std::string Name(const char* of, size_t a) {
  return std::string(of) + "_" + std::to_string(a + 1);
}
double Ms(double ns) {
  return ns / 1e6;
}

// The least work of a stage's operators, and what comes while the stage before computes.
void AddSizes(const PipelineTask& task, const std::vector<Stage>& stages, const StageTimes& times,
              Values* values) {
  const size_t n = task.gpus;
  const auto spare = [&](uint64_t needed) {
    return static_cast<double>(task.gpu_bytes - needed) / task.bytes_per_ns;
  };
  for (size_t j = 0; j < stages.size(); ++j) {
    uint64_t forward = 0, backward = 0;
    for (size_t i = stages[j].first; i < stages[j].behind; ++i) {
      forward = std::max(forward, task.layers[i].forward_work_bytes);
      backward = std::max(backward, task.layers[i].backward_work_bytes);
    }
    (*values)[Name("xf", j)] = Ms(static_cast<double>(forward) / task.bytes_per_ns);
    (*values)[Name("xb", j)] = Ms(static_cast<double>(backward) / task.bytes_per_ns);

    const auto during = [&](const std::vector<int64_t>& starts, int64_t time) {
      return static_cast<double>(starts.back() + time - starts.front());
    };
    if (j >= n) {
      const Stage& before = stages[j - n];
      (*values)[Name("pf", j)] =
          Ms(std::min({static_cast<double>(stages[j].weight_ns), spare(before.forward_bytes),
                       during(times.forward[j - n], before.forward_ns)}));
    }
    if (j + n < stages.size()) {
      const Stage& before = stages[j + n];
      (*values)[Name("pb", j)] = Ms(std::min(
          {static_cast<double>(stages[j].weight_ns + stages[j].input_ns),
           spare(before.backward_bytes), during(times.backward[j + n], before.backward_ns)}));
    }
  }
}

Values ValuesOf(const PipelineTask& task, const std::vector<Stage>& stages,
                const StageTimes& times) {
  Values values;
  for (size_t j = 0; j < task.layers.size(); ++j) {
    const bool used = j < stages.size();
    for (size_t m = 0; m < task.micro_batches; ++m) {
      const auto turn = static_cast<double>(times.forward_end_ns);
      values[Name("tf", j, m)] = Ms(used ? static_cast<double>(times.forward[j][m]) : turn);
      values[Name("tb", j, m)] = Ms(used ? static_cast<double>(times.backward[j][m]) : turn);
    }
    if (!used) continue;
    for (size_t i = stages[j].first; i < stages[j].behind; ++i) values[Name("B", i, j)] = 1;
    if (j > 0) values[Name("y", stages[j].first, j)] = 1;
  }
  AddSizes(task, stages, times, &values);
  return values;
}

TEST(PartitionProgram, HoldsForWhatWasFoundAndForNothingShorter) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const PipelineTask task = RandomPipeline(seed, 9);
    const StageTable table(task);
    auto found = FindPartition(table, {});
    ASSERT_TRUE(found.ok()) << seed;
    const std::vector<Stage> stages = table.StagesOf(found->ends);
    Values values = ValuesOf(task, stages, TimesOf(task, stages));
    const Program program(PartitionProgram(table));
    EXPECT_EQ(program.FirstBroken(values), "") << seed;
    EXPECT_NEAR(program.objective.Left(values), Ms(static_cast<double>(found->step_ns)), kTolerance)
        << seed;

    // With these stages no later micro-batch of backward can begin earlier.
    values[Name("tb", 0, task.micro_batches - 1)] -= 1e-6;
    EXPECT_NE(program.FirstBroken(values), "") << seed;
  }
}

// What a solver may not choose: layers in two stages, stages out of order, a stage that is too big.
TEST(PartitionProgram, RefusesWhatIsNoPartition) {
  PipelineTask task = RandomPipeline(1, 1);
  task.layers.assign(4, task.layers.front());
  const StageTable table(task);
  const std::vector<Stage> stages = table.StagesOf(std::vector<uint32_t>{1, 2, 3, 4});
  task.gpu_bytes = stages[1].backward_bytes;
  const Program program{PartitionProgram(StageTable(task))};
  const Values values = ValuesOf(task, stages, TimesOf(task, stages));

  Values twice = values;
  twice["B_1_2"] = 1;
  EXPECT_EQ(program.FirstBroken(twice), "one_1:");
  Values back = values;
  std::swap(back["B_2_2"], back["B_2_3"]);
  std::swap(back["B_3_3"], back["B_3_2"]);
  EXPECT_NE(program.FirstBroken(back), "");
  Values big = values;
  std::swap(big["B_3_3"], big["B_3_2"]);
  EXPECT_NE(program.FirstBroken(big), "");
}

}  // namespace partition_lp_test
}  // namespace tidepool::trainer
