// What the report makes of a trainer's metrics.jsonl.
#include "client/memctl/views/trainer_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <cmath>
#include <string>

namespace tidepool::client {
namespace trainer_metrics_test {

using ::testing::HasSubstr;

class Metrics : public ::testing::Test {
 protected:
  Metrics() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tidepool-metrics-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~Metrics() override { std::filesystem::remove_all(directory_); }
  Result<std::vector<StepMetrics>> Read(const std::string& text) {
    std::ofstream(path()) << text;
    return ReadMetrics(path());
  }
  std::string path() const { return directory_ + "/metrics.jsonl"; }
  // A step as trainer/output/step_report.cpp writes it: of 20 accesses 4 were fetched, 1 of them
  // late.
  static std::string Line(int step, int late, int bytes, int least) {
    return R"({"step":)" + std::to_string(step) +
           R"(,"loss":2.5,"grad_norm":1,"learning_rate":0.1,"loss_scale":1,"skipped":false,"tokens":64,"seconds":0.5,"tokens_per_s":128,)"
           R"("hits":16,"ahead":2,"misses":2,"hit_rate":0.8,"evictions":4,"prefetches":2,)"
           R"("prefetches_late":)" +
           std::to_string(late) + R"(,"waited_s":0.125,"bytes_h2d":)" + std::to_string(bytes) +
           R"(,"bytes_d2h":5,"bytes_h2d_theory":)" + std::to_string(least) +
           R"(,"bytes_d2h_theory":5})" + "\n";
  }
  std::string directory_;
};

TEST_F(Metrics, ToldAreTheHitRateItsBoundAndTheStepsWithLatePrefetches) {
  auto steps = Read(Line(1, 0, 4096, 0) + R"({"step":2,"loss":2,"tokens":64,"recovered":true})" +
                    "\n" + Line(3, 1, 4096, 3072) + R"({"step":4,"loss)");
  ASSERT_TRUE(steps.ok()) << steps.status().Format();
  ASSERT_EQ(steps->size(), 2u) << "one was sealed by a process before, one is being written";
  EXPECT_DOUBLE_EQ(steps->at(0).kept_rate(), 0.8);
  EXPECT_DOUBLE_EQ(steps->at(0).kept_rate_best(), 0) << "no order is known yet";
  EXPECT_DOUBLE_EQ(steps->at(1).kept_rate_best(), 0.85) << "three of the four fetches had to be";
  const std::string page = RenderMetrics(*steps);
  EXPECT_THAT(page, HasSubstr("2 steps; of 40 accesses 80.0 % found their chunk there and 10.0 % "
                              "fetched ahead; 1 prefetch in 1 step came late; "
                              "250 ms of 1.0 s were waited"));
  EXPECT_THAT(page,
              HasSubstr("in 1 step with a recorded order: 4.00 KiB, by Belady's rule 3.00 KiB"));
  EXPECT_THAT(page, HasSubstr("<title>step 3: 1 late prefetch</title>"));
  EXPECT_THAT(page, HasSubstr("points=\"0,200 1000,200\"")) << "80 %";
  EXPECT_THAT(page, HasSubstr("points=\"0,200 1000,150\"")) << "at most 85 %";
  for (const char* part : {"Loss", "Tokens a second", "p50 of the last 128", ">100 %</text>"})
    EXPECT_THAT(page, HasSubstr(part));
}

// A loss that is no number is a gap, and the held-out losses are dots.
TEST_F(Metrics, LossesAreDrawnWhereThereAreAny) {
  const auto with = [](const std::string& text, const std::string& loss) {
    std::string line = text;
    return line.replace(line.find("\"loss\":2.5"), 10, "\"loss\":" + loss);
  };
  auto steps = Read(with(Line(1, 0, 1, 0), "4,\"val_loss\":3.5") + with(Line(2, 0, 1, 0), "null") +
                    with(Line(3, 0, 1, 0), "2"));
  ASSERT_TRUE(steps.ok()) << steps.status().Format();
  EXPECT_TRUE(std::isnan(steps->at(1).loss));
  const std::string page = RenderMetrics(*steps);
  EXPECT_THAT(page, HasSubstr("points=\"0,0\"/><polyline"));
  EXPECT_THAT(page, HasSubstr("<title>step 1: held out 3.5000</title>"));
}

TEST_F(Metrics, AnotherFileIsRefusedByName) {
  const auto other = Read("what is this?\n");
  EXPECT_EQ(other.status().id(), ErrorId::kHandshakeBad);
  EXPECT_EQ(other.status().where(), path());
  EXPECT_THAT(other.status().fix(), HasSubstr("--out"));
  EXPECT_EQ(ReadMetrics(directory_ + "/none").status().id(), ErrorId::kFileUnreadable);
  EXPECT_EQ(RenderMetrics({}), "");
}

}  // namespace trainer_metrics_test
}  // namespace tidepool::client
