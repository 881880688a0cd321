#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidepool {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Logged(LogLevel level, LogFormat format, LogLevel threshold = LogLevel::kDebug) {
  InitLog("memserver", threshold, format);
  testing::internal::CaptureStderr();
  Log(level, "pool \"ready\"", {{"bytes", 4096}, {"why", "two words"}, {"huge", true}});
  return testing::internal::GetCapturedStderr();
}

TEST(Log, TextNamesProgramMessageAndFields) {
  const std::string line = Logged(LogLevel::kWarn, LogFormat::kText);
  EXPECT_THAT(line, HasSubstr("Z memserver warn: pool \"ready\"  bytes=4096  why=\"two words\"  huge="));
  EXPECT_THAT(line, EndsWith("\n"));
}

TEST(Log, JsonIsOneObjectALine) {
  const std::string line = Logged(LogLevel::kInfo, LogFormat::kJson);
  EXPECT_THAT(line, HasSubstr(R"("level":"info","program":"memserver","message":"pool \"ready\"","bytes":4096,"why":"two words")"));
  EXPECT_THAT(line, EndsWith("}\n"));
}

TEST(Log, WhatIsBelowTheLevelIsNotWritten) {
  EXPECT_THAT(Logged(LogLevel::kInfo, LogFormat::kText, LogLevel::kWarn), IsEmpty());
  EXPECT_THAT(Logged(LogLevel::kError, LogFormat::kText, LogLevel::kWarn), HasSubstr("error: "));
}

TEST(Log, OffATerminalAutoMeansJson) {
  EXPECT_THAT(Logged(LogLevel::kInfo, LogFormat::kAuto), HasSubstr("{\"time\":"));
}

}  // namespace
}  // namespace tidepool
