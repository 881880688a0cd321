// Metrics of an earlier run are never overwritten.
#include "trainer/output/earlier_metrics.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "trainer/output/step_report.h"

namespace tidepool::trainer {
namespace earlier_metrics_test {

class EarlierMetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/tidepool-earlier-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& text) const {
    std::ofstream(directory_ + "/metrics.jsonl") << text;
  }
  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(directory_ + "/" + name).rdbuf();
    return text.str();
  }
  bool Has(const std::string& name) const {
    return std::filesystem::exists(directory_ + "/" + name);
  }
  std::string SetAside(uint64_t sealed) const {
    Result<std::string> name = SetAsideEarlier(directory_, sealed);
    EXPECT_TRUE(name.ok()) << name.status().Format();
    return name.ok() ? *name : "";
  }

  static constexpr const char* kThree =
      "{\"step\":0,\"loss\":3}\n{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":1}\n";
  std::string directory_;
};

TEST_F(EarlierMetricsTest, NothingIsThereToKeep) {
  EXPECT_EQ(SetAside(0), "");
  Write("");
  EXPECT_EQ(SetAside(0), "");
  Write("{\"step\":0,\"loss\":3}\n");
  EXPECT_EQ(SetAside(0), "") << "nothing was trained";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

TEST_F(EarlierMetricsTest, ARunThatBeginsAnewLeavesThemUnderAnotherName) {
  Write(kThree);
  EXPECT_EQ(SetAside(0), "metrics.1.jsonl");
  EXPECT_FALSE(Has("metrics.jsonl"));
  EXPECT_EQ(Read("metrics.1.jsonl"), kThree);
  Write("{\"step\":1,\"loss\":9}\n");
  EXPECT_EQ(SetAside(0), "metrics.2.jsonl");
  EXPECT_EQ(Read("metrics.1.jsonl"), kThree);
  Write("somebody's notes\n");
  EXPECT_EQ(SetAside(0), "metrics.3.jsonl");
}

TEST_F(EarlierMetricsTest, ARunThatGoesOnKeepsItsOwnWhereTheyAre) {
  Write(kThree);
  EXPECT_EQ(SetAside(2), "");
  Write(std::string(kThree) + "{\"step\":3,\"lo");  // the process before died in its write
  EXPECT_EQ(SetAside(3), "");
}

// --out of a run of 200 steps is given to another job that goes on behind its step 1.
TEST_F(EarlierMetricsTest, LinesBehindTheSealedStepAreOfAnotherRun) {
  Write(kThree);
  EXPECT_EQ(SetAside(1), "metrics.1.jsonl");
  EXPECT_EQ(Read("metrics.1.jsonl"), kThree);
  EXPECT_EQ(Read("metrics.jsonl"), kThree) << "lines up to its step may be its own";
}

TEST_F(EarlierMetricsTest, TheWriterOfANewRunBeginsAnEmptyFile) {
  Write(kThree);
  const SteadyClock clock;
  auto writer = ReportWriter::Open({.directory = directory_, .quiet = true, .clock = &clock});
  ASSERT_TRUE(writer.ok()) << writer.status().Format();
  StepReport report;
  report.step = 1;
  ASSERT_TRUE(writer->Write(report).ok());
  EXPECT_EQ(Read("metrics.jsonl"), MetricsLine(report) + "\n");
  EXPECT_EQ(Read("metrics.1.jsonl"), kThree);
}

TEST_F(EarlierMetricsTest, WithoutAPlaceForThemTheRunDoesNotBegin) {
  Write(kThree);
  std::filesystem::create_symlink("/proc/nowhere", directory_ + "/metrics.1.jsonl");
  const SteadyClock clock;
  const auto writer = ReportWriter::Open({.directory = directory_, .quiet = true, .clock = &clock});
  EXPECT_TRUE(writer.ok()) << "the next number is free";
  EXPECT_EQ(Read("metrics.2.jsonl"), kThree);
}

}  // namespace earlier_metrics_test
}  // namespace tidepool::trainer
