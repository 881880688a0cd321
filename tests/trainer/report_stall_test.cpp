// Reports where the file system stands still: here a full pipe that nobody reads.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "base/clock.h"
#include "trainer/output/step_report.h"

namespace tidepool::trainer {
namespace report_stall_test {

constexpr ReportWaits kShort{.step_ns = 20 * kNsPerMs, .end_ns = 20 * kNsPerMs, .queue_max = 8};

class StalledReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/tidepool-stall-XXXXXX";
    directory_ = mkdtemp(name.data());
    ASSERT_EQ(mkfifo((directory_ + "/metrics.jsonl").c_str(), 0600), 0);
    pipe_ =
        UniqueFd(open((directory_ + "/metrics.jsonl").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    std::array<char, 4096> filler;
    filler.fill('x');
    while (write(pipe_.get(), filler.data(), filler.size()) > 0) {
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  ReportWriter Open(const ReportWaits& waits) const {
    auto writer = ReportWriter::Open(
        {.directory = directory_, .quiet = true, .waits = waits, .clock = &clock_});
    EXPECT_TRUE(writer.ok()) << writer.status().Format();
    return std::move(writer).value();
  }
  static Status DoStep(ReportWriter* writer, uint64_t step) {
    StepReport report;
    report.step = step;
    report.steps = 1000;
    TP_RETURN_IF_ERROR(writer->Note(report));
    return writer->Write(report);
  }
  // What is in the pipe, and comes until `lines` lines of reports are there.
  std::string Drain(uint64_t lines) const {
    std::string text;
    SteadyClock clock;
    const int64_t end_ns = clock.NowNs() + 60 * kNsPerSecond;
    std::array<char, 4096> bytes;
    while (static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n')) < lines &&
           clock.NowNs() < end_ns) {
      const ssize_t n = read(pipe_.get(), bytes.data(), bytes.size());
      if (n > 0) text.append(bytes.data(), static_cast<size_t>(n));
      if (n <= 0) clock.SleepNs(kNsPerMs);
    }
    return text.substr(std::min(text.size(), text.find('{')));
  }

  std::string directory_;
  const SteadyClock clock_{};
  UniqueFd pipe_;
};

TEST_F(StalledReportTest, StepsGoOnAndEveryReportIsWrittenWhenItAnswersAgain) {
  ReportWaits waits = kShort;
  waits.queue_max = 100;
  waits.end_ns = 60 * kNsPerSecond;
  ReportWriter writer = Open(waits);
  for (uint64_t step = 1; step <= 20; ++step) ASSERT_TRUE(DoStep(&writer, step).ok());
  EXPECT_EQ(writer.dropped(), 0U);

  const std::string text = Drain(20);
  size_t at = 0;
  for (uint64_t step = 1; step <= 20; ++step) {
    at = text.find("{\"step\":" + std::to_string(step) + ",", at);
    ASSERT_NE(at, std::string::npos) << step << " is missing, or out of order:\n" << text;
  }
  writer.Finish();
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/metrics.noted"));
}

TEST_F(StalledReportTest, WhatTheQueueCannotHoldIsCountedAndHoldsUpNoStep) {
  ReportWriter writer = Open(kShort);
  ::testing::internal::CaptureStderr();
  for (uint64_t step = 1; step <= 20; ++step) ASSERT_TRUE(DoStep(&writer, step).ok());
  const std::string log = ::testing::internal::GetCapturedStderr();
  // All but the first note, which is a file of its own.
  EXPECT_GE(writer.dropped(), 2 * 20 - kShort.queue_max - 1);
  EXPECT_NE(log.find("the run goes on"), std::string::npos) << log;
  EXPECT_NE(log.find("reports are lost"), std::string::npos) << log;
}

// A run that ends beside such a file system saves its weights all the same.
TEST_F(StalledReportTest, TheEndOfTheRunWaitsForItShortlyAndSaysSo) {
  ::testing::internal::CaptureStderr();
  {
    ReportWriter writer = Open(kShort);
    ASSERT_TRUE(DoStep(&writer, 1).ok());
    writer.Finish();
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the last reports are not written"), std::string::npos) << log;
}

}  // namespace report_stall_test
}  // namespace tidepool::trainer
