#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidepool {
namespace log_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Logged(LogLevel level, LogFormat format, LogLevel threshold = LogLevel::kDebug) {
  InitLog("memserver", threshold, format);
  ::testing::internal::CaptureStderr();
  Log(level, "pool \"ready\"", {{"bytes", 4096}, {"why", "two words"}, {"huge", true}});
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, TextNamesProgramMessageAndFields) {
  const std::string line = Logged(LogLevel::kWarn, LogFormat::kText);
  EXPECT_THAT(
      line,
      HasSubstr("Z memserver warn: pool \"ready\"  bytes=4096  why=\"two words\"  huge=true"));
  EXPECT_THAT(line, EndsWith("\n"));
}

TEST(Log, JsonIsOneObjectALine) {
  const std::string line = Logged(LogLevel::kInfo, LogFormat::kJson);
  EXPECT_THAT(
      line,
      HasSubstr(
          R"("level":"info","program":"memserver","message":"pool \"ready\"","bytes":4096,"why":"two words")"));
  EXPECT_THAT(line, EndsWith("}\n"));
}

TEST(Log, SizesDurationsAndRatesAreNumbersInJsonAndWordsInText) {
  const auto logged = [](LogFormat format) {
    InitLog("memserver", LogLevel::kDebug, format);
    ::testing::internal::CaptureStderr();
    LogInfo("ready", {{"pool", LogBytes{67'108'864}},
                      {"touch", LogSeconds{0.25}},
                      {"copied", LogRate{14.6e9}},
                      {"adopted", false}});
    return ::testing::internal::GetCapturedStderr();
  };

  EXPECT_THAT(
      logged(LogFormat::kText),
      HasSubstr("pool=\"64.0 MiB\"  touch=\"250 ms\"  copied=\"14.6 GB/s\"  adopted=false"));
  EXPECT_THAT(logged(LogFormat::kJson),
              HasSubstr(R"("pool_bytes":67108864,"touch_seconds":0.250000,)"
                        R"("copied_bytes_per_second":14600000000,"adopted":false})"));
}

TEST(Log, WhatIsBelowTheLevelIsNotWritten) {
  EXPECT_THAT(Logged(LogLevel::kInfo, LogFormat::kText, LogLevel::kWarn), IsEmpty());
  EXPECT_THAT(Logged(LogLevel::kError, LogFormat::kText, LogLevel::kWarn), HasSubstr("error: "));
}

TEST(Log, OffATerminalAutoMeansJson) {
  EXPECT_THAT(Logged(LogLevel::kInfo, LogFormat::kAuto), HasSubstr("{\"time\":"));
}

TEST(Log, TheLinesLoggedLastAreKeptWithTheirNumbers) {
  const auto before = RecentLines(0, kLoggedLinesKept);
  const uint64_t last = before.empty() ? 0 : before.back().number;
  LogWarn("first", {{"a", 1}});
  SetLogLevel(LogLevel::kInfo);
  LogDebug("below the level");
  LogInfo("second");
  const auto lines = RecentLines(last, 10);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].number, last + 1);
  EXPECT_EQ(lines[1].number, last + 2);
  EXPECT_TRUE(lines[0].json.starts_with("{\"time\":\"")) << lines[0].json;
  EXPECT_TRUE(lines[0].json.ends_with("\"message\":\"first\",\"a\":1}")) << lines[0].json;
  EXPECT_EQ(RecentLines(last + 1, 10).size(), 1U);
  EXPECT_EQ(RecentLines(last, 1).size(), 1U);
  EXPECT_TRUE(RecentLines(last + 2, 10).empty());
}

}  // namespace log_test
}  // namespace tidepool
