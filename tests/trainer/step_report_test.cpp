#include "trainer/output/step_report.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <boost/json.hpp>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace tidepool::trainer {
namespace step_report_test {

using ::testing::HasSubstr;
using ::testing::Not;

const SteadyClock& Steady() {
  static const SteadyClock clock;
  return clock;
}

StepReport Report(uint64_t step) {
  StepReport report;
  report.step = step;
  report.steps = 200;
  report.loss = 3.41234;
  report.grad_norm = 0.75;
  report.learning_rate = 0.001;
  report.tokens = 2048;
  report.seconds = 4;
  report.eta_seconds = 61;
  report.hits = 24;
  report.ahead = 6;
  report.misses = 10;
  report.evictions = 9;
  report.evictions_unforeseen = 2;
  report.prefetches = 8;
  report.prefetches_late = 1;
  report.waited_seconds = 0.25;
  report.cpus_shared = true;
  report.bytes_h2d = 12 << 20;
  report.bytes_d2h = 4 << 20;
  report.bytes_h2d_theory = 12 << 20;
  report.bytes_d2h_theory = 4 << 20;
  report.groups = {{.fetched = 1, .handed_in = 2, .gathered = 3, .scattered = 4, .reduced = 5},
                   {.fetched = 6}};
  report.groups_theory = {{.fetched = 7, .reduced = 8}, {.fetched = 9}};
  return report;
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(StepReport, RatesOfAnEmptyStepAreDefined) {
  const StepReport report;
  EXPECT_EQ(report.tokens_per_second(), 0);
  EXPECT_EQ(report.hit_rate(), 1);
  EXPECT_EQ(Report(1).tokens_per_second(), 512);
  EXPECT_EQ(Report(1).hit_rate(), 0.6);
  EXPECT_EQ(Report(1).ahead_rate(), 0.15);
}

TEST(ProgressLine, SaysWhatHappened) {
  const std::string line = ProgressLine(Report(12));
  EXPECT_THAT(line, ::testing::StartsWith("step 12/200  loss 3.4123  "));
  for (const char* part : {"512 tok/s  4.0 s a step, waits 6 %", "hit 60 %, ahead 15 %", "in 12",
                           "out 4", "MiB", "ETA 1:01"})
    EXPECT_THAT(line, HasSubstr(part));
  EXPECT_THAT(line, Not(HasSubstr("held-out")));
  EXPECT_THAT(line, Not(HasSubstr("SKIPPED")));
  EXPECT_THAT(line, Not(HasSubstr("\n")));
}

TEST(ProgressLine, SpecialStepsSaySo) {
  StepReport report = Report(200);
  report.held_out_loss = 2.5;
  report.skipped = true;
  report.loss_scale = 65536;
  const std::string line = ProgressLine(report);
  EXPECT_THAT(line, HasSubstr("held-out 2.5000"));
  EXPECT_THAT(line, HasSubstr("SKIPPED (overflow, loss scale 65536)"));
  EXPECT_THAT(line, Not(HasSubstr("ETA")));  // nothing is left to do
}

TEST(MetricsLine, HasWhatWaitsBetweenStagesWhereThereAreAny) {
  StepReport report = Report(12);
  report.bytes_boundary = 77;
  EXPECT_THAT(MetricsLine(report), HasSubstr("\"bytes_boundary\":77"));
  EXPECT_THAT(MetricsLine(report), Not(HasSubstr("bytes_linked"))) << "there is one rank";
  report.bytes_linked = 5;
  report.bytes_linked_theory = 6;
  EXPECT_THAT(MetricsLine(report), HasSubstr("\"bytes_linked\":5,\"bytes_linked_theory\":6"));
}

TEST(MetricsLine, IsOneJsonObjectWithEveryFigure) {
  StepReport report = Report(12);
  report.held_out_loss = 2.5;
  const std::string line = MetricsLine(report);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const boost::json::object object = boost::json::parse(line).as_object();
  const auto number = [&](const char* key) { return object.at(key).to_number<double>(); };
  EXPECT_EQ(number("step"), 12);
  EXPECT_EQ(number("loss"), 3.41234);
  EXPECT_EQ(number("val_loss"), 2.5);
  EXPECT_EQ(number("grad_norm"), 0.75);
  EXPECT_EQ(number("learning_rate"), 0.001);
  EXPECT_EQ(number("loss_scale"), 1);
  EXPECT_EQ(number("tokens"), 2048);
  EXPECT_EQ(number("seconds"), 4);
  EXPECT_EQ(number("tokens_per_s"), 512);
  EXPECT_EQ(number("hits"), 24);
  EXPECT_EQ(number("ahead"), 6);
  EXPECT_EQ(number("misses"), 10);
  EXPECT_EQ(number("hit_rate"), 0.6);
  EXPECT_EQ(number("evictions"), 9);
  EXPECT_EQ(number("evictions_unforeseen"), 2);
  EXPECT_EQ(number("prefetches"), 8);
  EXPECT_EQ(number("prefetches_late"), 1);
  EXPECT_TRUE(object.at("cpus_shared").as_bool());
  EXPECT_EQ(number("waited_s"), 0.25);
  EXPECT_EQ(number("bytes_h2d"), 12 << 20);
  EXPECT_EQ(number("bytes_d2h"), 4 << 20);
  EXPECT_EQ(number("bytes_h2d_theory"), 12 << 20);
  EXPECT_EQ(number("bytes_d2h_theory"), 4 << 20);
  EXPECT_THAT(line, Not(HasSubstr("bytes_boundary"))) << "there are no stages";
  EXPECT_EQ(boost::json::serialize(object.at("groups")),
            R"([{"bytes":{"fetched":1,"handed_in":2,"gathered":3,"scattered":4,"reduced":5},)"
            R"("theory":{"fetched":7,"handed_in":0,"gathered":0,"scattered":0,"reduced":8}},)"
            R"({"bytes":{"fetched":6,"handed_in":0,"gathered":0,"scattered":0,"reduced":0},)"
            R"("theory":{"fetched":9,"handed_in":0,"gathered":0,"scattered":0,"reduced":0}}])");
  EXPECT_FALSE(object.at("skipped").as_bool());
}

TEST(MetricsLine, ARunThatLogsItsStepsSaysWhichAPowerCutLeaves) {
  StepReport report = Report(1);
  EXPECT_THAT(MetricsLine(report), Not(HasSubstr("durable")));
  report.durable = true;
  EXPECT_THAT(MetricsLine(report), HasSubstr("\"durable\":true"));
  EXPECT_THAT(ProgressLine(report), Not(HasSubstr("on the drive")));
  report.durable = false;
  EXPECT_THAT(MetricsLine(report), HasSubstr("\"durable\":false"));
  EXPECT_THAT(ProgressLine(report), HasSubstr("(not on the drive yet)"));
}

TEST(MetricsLine, ALossThatIsNoNumberIsNullAndAMissingOneIsAbsent) {
  StepReport report = Report(1);
  report.loss = std::numeric_limits<double>::quiet_NaN();
  const boost::json::object object = boost::json::parse(MetricsLine(report)).as_object();
  EXPECT_TRUE(object.at("loss").is_null());
  EXPECT_FALSE(object.contains("val_loss"));
}

class ReportWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/report-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    own_stderr_ = UniqueFd(dup(STDERR_FILENO));
    Divert(UniqueFd(open((directory_ + "/stderr").c_str(), O_RDWR | O_CREAT, 0600)));
  }
  void TearDown() override {
    dup2(own_stderr_.get(), STDERR_FILENO);
    std::filesystem::remove_all(directory_);
  }
  static void Divert(const UniqueFd& to) { ASSERT_GE(dup2(to.get(), STDERR_FILENO), 0); }
  std::vector<std::string> Shown() const { return Lines(ReadText(directory_ + "/stderr")); }

  static ReportWriter Open(const std::string& directory, uint64_t every, bool quiet = false) {
    auto writer = ReportWriter::Open(
        {.directory = directory, .every = every, .quiet = quiet, .clock = &Steady()});
    EXPECT_TRUE(writer.ok()) << writer.status().Format();
    return std::move(writer).value();
  }
  static void Write(ReportWriter* writer, const StepReport& report) {
    const Status status = writer->Write(report);
    EXPECT_TRUE(status.ok()) << status.Format();
  }

  std::string directory_;
  UniqueFd own_stderr_;
};

TEST_F(ReportWriterTest, EveryStepIsInTheFilesAndOnlyDueOnesAreShown) {
  const std::string out = directory_ + "/new";
  ReportWriter writer = Open(out, 5);
  for (uint64_t step = 1; step <= 12; ++step) Write(&writer, Report(step));
  const std::vector<std::string> metrics = Lines(ReadText(out + "/metrics.jsonl"));
  ASSERT_EQ(metrics.size(), 12U);
  EXPECT_EQ(metrics[6], MetricsLine(Report(7)));
  EXPECT_THAT(Shown(), ::testing::ElementsAre(ProgressLine(Report(5)), ProgressLine(Report(10))));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out))
    files += entry.path().string().find("tfevents") != std::string::npos ? 1 : 0;
  EXPECT_EQ(files, 1);
}

TEST_F(ReportWriterTest, HeldOutSkippedAndLastStepsAreAlwaysShown) {
  ReportWriter writer = Open("", 1000);
  StepReport held_out = Report(1), skipped = Report(2);
  held_out.held_out_loss = 2;
  skipped.skipped = true;
  for (const StepReport& report : {held_out, skipped, Report(3), Report(200)})
    Write(&writer, report);
  EXPECT_THAT(Shown(), ::testing::ElementsAre(ProgressLine(held_out), ProgressLine(skipped),
                                              ProgressLine(Report(200))));
}

TEST_F(ReportWriterTest, QuietShowsNothingAndStillWrites) {
  ReportWriter writer = Open(directory_, 1, true);
  Write(&writer, Report(1));
  writer.EndLine();
  EXPECT_TRUE(Shown().empty());
  EXPECT_EQ(Lines(ReadText(directory_ + "/metrics.jsonl")).size(), 1U);
}

TEST_F(ReportWriterTest, ANewRunBeginsANewMetricsFile) {
  for (int run = 0; run < 2; ++run) {
    ReportWriter writer = Open(directory_, 1);
    Write(&writer, Report(1));
  }
  EXPECT_EQ(Lines(ReadText(directory_ + "/metrics.jsonl")).size(), 1U);
}

// A writer that goes on behind step `sealed` of the run that wrote into directory_ before.
class ContinuedReportTest : public ReportWriterTest {
 protected:
  ReportWriter Continue(uint64_t sealed) const {
    auto writer = ReportWriter::Open(
        {.directory = directory_, .quiet = true, .sealed = sealed, .clock = &Steady()});
    EXPECT_TRUE(writer.ok()) << writer.status().Format();
    return std::move(writer).value();
  }
  void WriteSteps(uint64_t last) const {
    ReportWriter writer = Open(directory_, 1, true);
    for (uint64_t step = 1; step <= last; ++step) {
      EXPECT_TRUE(writer.Note(Report(step)).ok());
      Write(&writer, Report(step));
    }
  }
  std::vector<std::string> Metrics() const {
    return Lines(ReadText(directory_ + "/metrics.jsonl"));
  }
};

TEST_F(ContinuedReportTest, LinesUpToTheSealedStepStayAndNewOnesFollow) {
  WriteSteps(5);
  ReportWriter writer = Continue(5);
  EXPECT_FALSE(writer.unreported());
  Write(&writer, Report(6));
  ASSERT_EQ(Metrics().size(), 6U);
  for (uint64_t step = 1; step <= 6; ++step)
    EXPECT_EQ(Metrics()[step - 1], MetricsLine(Report(step)));
}

TEST_F(ContinuedReportTest, WhatIsBehindTheSealedStepOrCutOffGoes) {
  WriteSteps(5);
  { ReportWriter writer = Continue(3); }
  EXPECT_EQ(Metrics().size(), 3U);
  std::ofstream(directory_ + "/metrics.jsonl", std::ios::app) << "{\"step\":4,\"lo";
  { ReportWriter writer = Continue(4); }
  EXPECT_EQ(Metrics().size(), 3U);
}

TEST_F(ContinuedReportTest, ASealedStepThatWasOnlyNotedCanBeReported) {
  StepReport noted = Report(4);
  noted.loss = 1.0 / 3;
  noted.loss_scale = 1024;
  {
    ReportWriter writer = Open(directory_, 1, true);
    for (uint64_t step = 1; step <= 3; ++step) Write(&writer, Report(step));
    EXPECT_TRUE(writer.Note(noted).ok());
  }
  ReportWriter writer = Continue(4);
  ASSERT_TRUE(writer.unreported());
  EXPECT_EQ(writer.unreported()->loss, noted.loss);
  EXPECT_EQ(writer.unreported()->learning_rate, noted.learning_rate);
  EXPECT_EQ(writer.unreported()->loss_scale, 1024);
  EXPECT_EQ(writer.unreported()->tokens, noted.tokens);
  Write(&writer, *writer.unreported());
  const boost::json::object line = boost::json::parse(Metrics().at(3)).as_object();
  EXPECT_EQ(line.at("loss").as_double(), noted.loss);
  EXPECT_TRUE(line.at("grad_norm").is_null());
  EXPECT_TRUE(line.at("recovered").as_bool());
  EXPECT_THAT(ProgressLine(*writer.unreported()), HasSubstr("sealed by the process before"));
}

TEST_F(ContinuedReportTest, AStepThatWasNotedButNeverSealedIsNotReported) {
  WriteSteps(3);
  EXPECT_TRUE(Continue(3).Note(Report(4)).ok());
  EXPECT_FALSE(Continue(3).unreported());
}

TEST_F(ContinuedReportTest, MissingStepsAreTold) {
  WriteSteps(3);
  ReportWriter writer = Continue(7);
  EXPECT_FALSE(writer.unreported());
  EXPECT_THAT(ReadText(directory_ + "/stderr"),
              ::testing::AllOf(HasSubstr("no lines"), HasSubstr("from=4"), HasSubstr("to=7")));
}

TEST_F(ContinuedReportTest, TheNoteGoesWithTheLastStep) {
  ReportWriter writer = Open(directory_, 1, true);
  EXPECT_TRUE(writer.Note(Report(1)).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/metrics.noted"));
  writer.Finish();
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/metrics.noted"));
}

TEST_F(ReportWriterTest, OnATerminalOneLineIsRewritten) {
  const UniqueFd terminal(posix_openpt(O_RDWR | O_NOCTTY));
  ASSERT_TRUE(terminal.valid());
  ASSERT_EQ(grantpt(terminal.get()), 0);
  ASSERT_EQ(unlockpt(terminal.get()), 0);
  const UniqueFd screen(open(ptsname(terminal.get()), O_RDWR | O_NOCTTY));
  ASSERT_TRUE(screen.valid());
  Divert(UniqueFd(dup(screen.get())));
  ReportWriter writer = Open("", 100);
  Write(&writer, Report(1));
  const winsize narrow{.ws_row = 24, .ws_col = 31, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(screen.get(), TIOCSWINSZ, &narrow), 0);
  Write(&writer, Report(2));
  writer.EndLine();
  writer.EndLine();  // once is enough
  std::string shown;
  while (!shown.ends_with("\r\n")) {  // a terminal hands out what it has, not what we wait for
    std::string part(4096, '\0');
    const ssize_t n = read(terminal.get(), part.data(), part.size());
    ASSERT_GT(n, 0);
    shown.append(part, 0, static_cast<size_t>(n));
  }
  EXPECT_EQ(shown, "\r\033[K" + ProgressLine(Report(1)) + "\r\033[K" +
                       ProgressLine(Report(2)).substr(0, 30) + "\r\n")
      << "what is wider than the screen could not be written over";
}

TEST_F(ReportWriterTest, APlaceWhereNothingCanBeWrittenIsAnError) {
  const auto writer =
      ReportWriter::Open({.directory = "/proc/nowhere", .quiet = true, .clock = &Steady()});
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.status().id(), ErrorId::kFileWriteFailed);
  EXPECT_THAT(writer.status().what(), HasSubstr("/proc/nowhere/metrics.jsonl"));
}

TEST_F(ReportWriterTest, AFullDiskIsAnErrorOfTheStep) {
  std::filesystem::create_symlink("/dev/full", directory_ + "/metrics.jsonl");
  ReportWriter writer = Open(directory_, 1, true);
  EXPECT_EQ(writer.Write(Report(1)).id(), ErrorId::kFileWriteFailed);
}

}  // namespace step_report_test
}  // namespace tidepool::trainer
