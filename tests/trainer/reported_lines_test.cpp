#include "trainer/output/reported_lines.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "trainer/output/step_report.h"

namespace tidepool::trainer {
namespace reported_lines_test {

// Enough for any of these files to be read from its end; a file of 100,000 lines has 50 MiB.
constexpr uint64_t kTailBytes = 256 * 1024;

std::string LineOf(uint64_t step) {
  StepReport report;
  report.step = step;
  return MetricsLine(report) + "\n";
}

std::string LinesOf(uint64_t first, uint64_t last) {
  std::string text;
  for (uint64_t step = first; step <= last; ++step) text += LineOf(step);
  return text;
}

class ReportedLinesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/reported-XXXXXX";
    file_ = UniqueFd(mkstemp(path.data()));
    ASSERT_TRUE(file_.valid());
    unlink(path.c_str());
  }

  void Put(const std::string& text) const {
    ASSERT_EQ(ftruncate(file_.get(), 0), 0);
    for (size_t done = 0; done < text.size();) {
      const ssize_t n =
          pwrite(file_.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
      ASSERT_GT(n, 0);
      done += static_cast<size_t>(n);
    }
  }
  ReportedLines Find(uint64_t sealed) const {
    Result<ReportedLines> found = FindReportedLines(file_.get(), sealed);
    EXPECT_TRUE(found.ok()) << found.status().Format();
    return found.ok() ? *found : ReportedLines{};
  }
  // `text` is kept up to `bytes`, where the line of `last` ends.
  void ExpectKept(const std::string& text, uint64_t sealed, uint64_t bytes, uint64_t last) const {
    Put(text);
    const ReportedLines found = Find(sealed);
    EXPECT_EQ(found.bytes, bytes);
    EXPECT_EQ(found.last, last);
  }

  UniqueFd file_;
};

TEST_F(ReportedLinesTest, AnEmptyFileHasNone) {
  ExpectKept("", 5, 0, 0);
}

TEST_F(ReportedLinesTest, LinesUpToTheSealedStepAreKept) {
  const std::string three = LinesOf(1, 3);
  ExpectKept(three, 3, three.size(), 3);
  ExpectKept(three + LinesOf(4, 6), 3, three.size(), 3);
  ExpectKept(three + LinesOf(4, 6), 100, LinesOf(1, 6).size(), 6);
}

TEST_F(ReportedLinesTest, WhereAllLinesAreOfLaterStepsNoneIsKept) {
  ExpectKept(LinesOf(4, 6), 3, 0, 0);
}

TEST_F(ReportedLinesTest, TheLineBeforeTrainingCounts) {
  ExpectKept(LinesOf(0, 1), 1, LinesOf(0, 1).size(), 1);
  ExpectKept(LinesOf(0, 0) + LinesOf(2, 2), 1, LinesOf(0, 0).size(), 0);
}

TEST_F(ReportedLinesTest, ALineThatIsCutAnywhereGoes) {
  const std::string kept = LinesOf(1, 2), third = LineOf(3);
  for (const size_t cut : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{10}, third.size() / 2,
                           third.size() - 1}) {
    SCOPED_TRACE(cut);
    ExpectKept(kept + third.substr(0, cut), 3, kept.size(), 2);
  }
}

TEST_F(ReportedLinesTest, ForeignLinesAtTheEndGo) {
  const std::string kept = LinesOf(1, 2);
  for (const char* foreign : {"\n", "\n\n\n", "not json\n", "{\"step\":}\n", "{\"step\":3\n",
                              "{\"step\":-3,\n", "{\"step\":99999999999999999999999999,\n",
                              "{\"steps\":3,\n", "{ \"step\":3,\n", "{\"step\":3", "{\"step\":"}) {
    SCOPED_TRACE(foreign);
    ExpectKept(kept + foreign, 3, kept.size(), 2);
  }
  ExpectKept(kept + std::string("{\"step\":3\0,\n", 12), 3, kept.size(), 2);
}

TEST_F(ReportedLinesTest, ALineMayBeLargerThanAnyBlock) {
  const std::string kept = LinesOf(1, 2);
  const std::string huge = "{\"step\":3,\"x\":\"" + std::string(3 << 20, 'x') + "\"}\n";
  ExpectKept(kept + huge, 3, kept.size() + huge.size(), 3);
  ExpectKept(kept + huge, 2, kept.size(), 2);
  ExpectKept(kept + huge.substr(0, huge.size() - 1), 3, kept.size(), 2);
  ExpectKept(huge, 2, 0, 0);
}

TEST_F(ReportedLinesTest, LinesMayEndWhereABlockEnds) {
  for (const size_t size : {(64u << 10) - 1, 64u << 10, (64u << 10) + 1}) {
    SCOPED_TRACE(size);
    std::string text = "{\"step\":1,";
    text += std::string(size - text.size() - 1, ' ') + "\n";
    ExpectKept(text + text, 1, 2 * text.size(), 1);
    ExpectKept(text + LineOf(2), 1, text.size(), 1);
  }
}

TEST_F(ReportedLinesTest, OfALongRunOnlyTheEndIsRead) {
  const std::string text = LinesOf(1, 100'000), later = LinesOf(100'001, 100'003);
  Put(text + later + "{\"step\":100004,");
  const ReportedLines found = Find(100'000);
  EXPECT_EQ(found.bytes, text.size());
  EXPECT_EQ(found.last, 100'000U);
  EXPECT_LE(found.looked_at, kTailBytes) << "of " << text.size();
}

TEST_F(ReportedLinesTest, WhereNothingIsKeptEachByteIsReadOnceAndTheLinesBeginningsAgain) {
  constexpr uint64_t kLines = 20'000, kBeginningBytes = 32;
  const std::string text = LinesOf(2, kLines);
  Put(text);
  const ReportedLines found = Find(1);
  EXPECT_EQ(found.bytes, 0U);
  EXPECT_LE(found.looked_at, text.size() + kLines * kBeginningBytes);
}

TEST_F(ReportedLinesTest, ADeviceHoldsNone) {
  const UniqueFd device(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const auto found = FindReportedLines(device.get(), 3);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found.value().bytes, 0U);
}

TEST_F(ReportedLinesTest, AFileThatCannotBeReadIsAnErrorAndNotAnEmptyOne) {
  Put(LinesOf(1, 3));
  const UniqueFd only_written(
      open(("/proc/self/fd/" + std::to_string(file_.get())).c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(only_written.valid());
  EXPECT_EQ(FindReportedLines(only_written.get(), 3).status().id(), ErrorId::kFileUnreadable);
  EXPECT_EQ(FindReportedLines(-1, 3).status().id(), ErrorId::kFileUnreadable);
}

}  // namespace reported_lines_test
}  // namespace tidepool::trainer
