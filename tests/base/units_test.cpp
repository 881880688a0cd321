#include "base/units.h"

#include <ctime>

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tidepool {
namespace units_test {

TEST(ParseSize, UnderstandsBinaryAndDecimalUnits) {
  const std::vector<std::pair<const char*, uint64_t>> cases = {{"0", 0},
                                                               {"4096", 4096},
                                                               {"64KiB", 64 * kKiB},
                                                               {"64K", 64 * kKiB},
                                                               {"1.5GiB", 3 * kGiB / 2},
                                                               {"2GB", 2000000000},
                                                               {"2 MiB", 2 * kMiB},
                                                               {"1TiB", 1024 * kGiB},
                                                               {"7B", 7}};
  for (const auto& [text, bytes] : cases) {
    const Result<uint64_t> size = ParseSize(text);
    ASSERT_TRUE(size.ok()) << text;
    EXPECT_EQ(size.value(), bytes) << text;
  }
}

TEST(ParseSize, RefusesWhatItDoesNotUnderstand) {
  for (const char* text :
       {"", "GiB", "-1", "1XiB", "1GiBs", "inf", "nan", "1e30", "99999999TiB", "1,5GiB", "50%"}) {
    const Result<uint64_t> size = ParseSize(text);
    EXPECT_EQ(size.status().id(), ErrorId::kConfigBadValue) << text;
    EXPECT_NE(size.status().Format().find("1.5GiB"), std::string::npos)
        << "the accepted forms are shown: " << size.status().Format();
  }
}

TEST(ParseSizeOrShare, TakesASharesOfTheWhole) {
  EXPECT_EQ(ParseSizeOrShare("25%", 1000).value(), 250U);
  EXPECT_EQ(ParseSizeOrShare("100%", 1000).value(), 1000U);
  EXPECT_EQ(ParseSizeOrShare("0.5%", 1000).value(), 5U);
  EXPECT_EQ(ParseSizeOrShare("1KiB", 1000).value(), 1024U);
}

TEST(ParseSizeOrShare, RefusesMoreThanTheWholeAndNonsense) {
  for (const char* text : {"101%", "%", "-5%", "x%", "5%%"}) {
    EXPECT_EQ(ParseSizeOrShare(text, 1000).status().id(), ErrorId::kConfigBadValue) << text;
  }
}

TEST(ParseDuration, UnderstandsEveryUnit) {
  EXPECT_EQ(ParseDurationNs("250ms").value(), 250'000'000);
  EXPECT_EQ(ParseDurationNs("30s").value(), 30'000'000'000);
  EXPECT_EQ(ParseDurationNs("30").value(), 30'000'000'000);
  EXPECT_EQ(ParseDurationNs("2min").value(), 120'000'000'000);
  EXPECT_EQ(ParseDurationNs("1.5h").value(), 5'400'000'000'000);
  EXPECT_EQ(ParseDurationNs("7us").value(), 7'000);
  EXPECT_EQ(ParseDurationNs("10m").value(), 600'000'000'000);
  EXPECT_EQ(ParseDurationNs("7d").value(), 604'800'000'000'000);
  EXPECT_EQ(ParseDurationNs("7ns").value(), 7);
}

TEST(ParseDuration, RefusesWhatItDoesNotUnderstand) {
  for (const char* text : {"", "s", "-1s", "1 day", "1e300h"}) {
    EXPECT_EQ(ParseDurationNs(text).status().id(), ErrorId::kConfigBadValue) << text;
  }
}

TEST(Format, BytesWithThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(kKiB), "1.00 KiB");
  EXPECT_EQ(FormatBytes(3 * kGiB / 2), "1.50 GiB");
  EXPECT_EQ(FormatBytes(100 * kMiB), "100 MiB");
  EXPECT_EQ(FormatBytes(33 * kGiB + kGiB / 10), "33.1 GiB");
}

TEST(Format, Durations) {
  EXPECT_EQ(FormatDuration(0.0002), "200 us");
  EXPECT_EQ(FormatDuration(0.24), "240 ms");
  EXPECT_EQ(FormatDuration(3.2), "3.2 s");
  EXPECT_EQ(FormatDuration(125), "2:05 min");
  EXPECT_EQ(FormatDuration(7510), "2:05:10");
}

TEST(Format, TimesOfTodayAreTimesAndOthersHaveTheirDay) {
  const int64_t now = 1'764'000'000, day = 24 * 3600;
  std::time_t time = now;
  std::tm parts{};
  localtime_r(&time, &parts);
  const int64_t midnight = now - parts.tm_hour * 3600 - parts.tm_min * 60 - parts.tm_sec;
  EXPECT_EQ(FormatWhen(midnight + 13 * 3600 + 5 * 60 + 59, now), "13:05");
  EXPECT_EQ(FormatWhen(midnight, now), "00:00");
  EXPECT_EQ(FormatWhen(midnight + 13 * 3600, midnight + day + 60).substr(10), " 13:00");
  EXPECT_EQ(FormatWhen(midnight + day, now).size(), std::string("2026-11-24 00:00").size());
}

TEST(Format, Counts) {
  EXPECT_EQ(FormatCount(9999), "9999");
  EXPECT_EQ(FormatCount(12'300), "12.3K");
  EXPECT_EQ(FormatCount(124'400'000), "124.4M");
  EXPECT_EQ(FormatCount(1'500'000'000), "1.50B");
}

TEST(Round, UpToMultiples) {
  EXPECT_EQ(RoundUp(0, 64), 0U);
  EXPECT_EQ(RoundUp(1, 64), 64U);
  EXPECT_EQ(RoundUp(64, 64), 64U);
  EXPECT_EQ(DivideUp(65, 64), 2U);
}

}  // namespace units_test
}  // namespace tidepool
