#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/picture/chart.h"
#include "base/picture/palette.h"

namespace tidepool {
namespace picture_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Rgb = std::array<double, 3>;
using Matrix = std::array<Rgb, 3>;

Rgb LinearOf(std::string_view hex) {
  Rgb rgb{};
  for (size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(std::string(hex.substr(1 + 2 * i, 2)), nullptr, 16) / 255.0;
    rgb[i] = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  }
  return rgb;
}

// CIE L*a*b*, of linear sRGB and white D65.
Rgb LabOf(const Rgb& rgb) {
  constexpr Matrix kXyz{
      {{0.4124, 0.3576, 0.1805}, {0.2126, 0.7152, 0.0722}, {0.0193, 0.1192, 0.9505}}};
  constexpr Rgb kWhite{0.9505, 1, 1.089};
  Rgb f{};
  for (size_t i = 0; i < 3; ++i) {
    const double value =
        std::max(0.0, kXyz[i][0] * rgb[0] + kXyz[i][1] * rgb[1] + kXyz[i][2] * rgb[2]) / kWhite[i];
    f[i] = value > 0.008856 ? std::cbrt(value) : 7.787 * value + 16.0 / 116;
  }
  return {116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])};
}

// What is seen without one kind of cone (Machado, Oliveira, Fernandes: A Physiologically-based
// Model for Simulation of Color Vision Deficiency, IEEE TVCG 15(6), 2009, severity 1.0).
constexpr std::array<Matrix, 4> kVisions{{{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
                                          {{{0.152286, 1.052583, -0.204868},
                                            {0.114503, 0.786281, 0.099216},
                                            {-0.003882, -0.048116, 1.051998}}},
                                          {{{0.367322, 0.860646, -0.227968},
                                            {0.280085, 0.672501, 0.047413},
                                            {-0.011820, 0.042940, 0.968881}}},
                                          {{{1.255528, -0.076749, -0.178779},
                                            {-0.078411, 0.930809, 0.147602},
                                            {0.004733, 0.691367, 0.303900}}}}};

Rgb Seen(const Matrix& vision, std::string_view hex) {
  const Rgb rgb = LinearOf(hex);
  Rgb seen{};
  for (size_t i = 0; i < 3; ++i)
    seen[i] = vision[i][0] * rgb[0] + vision[i][1] * rgb[1] + vision[i][2] * rgb[2];
  return LabOf(seen);
}

// CIE 1976; 2.3 is what one can just tell apart.
double Distance(const Rgb& a, const Rgb& b) {
  return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

TEST(Palette, StatesAreToldApartByEveryColourVision) {
  for (const auto ground : {&Ink::light, &Ink::dark}) {
    for (const Matrix& vision : kVisions) {
      for (const Ink& one : StateInks()) {
        for (const Ink& other : StateInks()) {
          if (&one >= &other) continue;
          // Ground alone, with a frame or without: an empty chunk has one.
          const bool both_empty = one.name == "absent" && other.name == "empty";
          EXPECT_GT(Distance(Seen(vision, one.*ground), Seen(vision, other.*ground)),
                    both_empty ? 5 : 11)
              << one.name << " and " << other.name;
        }
      }
    }
  }
}

// Contrast of words on their grounds (WCAG 2.1, 1.4.3: 4.5 at least).
TEST(Palette, WordsAreReadable) {
  const auto find = [](std::string_view name) {
    return *std::find_if(Inks().begin(), Inks().end(),
                         [&](const Ink& ink) { return ink.name == name; });
  };
  const auto light_of = [](std::string_view hex) {
    const Rgb rgb = LinearOf(hex);
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2] + 0.05;
  };
  for (const auto ground : {&Ink::light, &Ink::dark}) {
    for (const char* words : {"ink", "soft", "good", "warn", "bad"}) {
      for (const char* behind : {"card", "ground"}) {
        const double a = light_of(find(words).*ground), b = light_of(find(behind).*ground);
        EXPECT_GE(std::max(a, b) / std::min(a, b), 4.5) << words << " on " << behind;
      }
    }
  }
}

TEST(Palette, TheStyleFollowsTheGroundAndTheRoom) {
  const std::string page = PictureStyle(PictureHome::kPage),
                    file = PictureStyle(PictureHome::kFile);
  EXPECT_THAT(page, HasSubstr("--held:#009e73"));
  EXPECT_THAT(page, HasSubstr("@media (prefers-color-scheme:dark)"));
  EXPECT_THAT(page, HasSubstr("@container (min-width:420px){.w420{display:inline}}"));
  EXPECT_THAT(file, HasSubstr("@media (min-width:420px){.w420{display:inline}}"));
  EXPECT_THAT(file, Not(HasSubstr("@container")));
  EXPECT_EQ(RoomClass(100), "") << "every picture is as wide";
  EXPECT_EQ(RoomClass(400), " w420");
  EXPECT_FALSE(FitsRoom(4000));
}

std::vector<std::string> LabelsOf(const Scale& scale) {
  std::vector<std::string> labels;
  for (const Tick& tick : scale.ticks) labels.push_back(tick.label);
  return labels;
}

TEST(Scale, TicksAreRoundNumbersWithTheirUnit) {
  EXPECT_THAT(LabelsOf(RoundScale(0, 0.083, AxisUnit::kSeconds)),
              ElementsAre("0 ms", "50 ms", "100 ms"));
  EXPECT_THAT(LabelsOf(RoundScale(0, 1, AxisUnit::kShare)), ElementsAre("0 %", "50 %", "100 %"));
  EXPECT_THAT(LabelsOf(RoundScale(0, 1536 * 1024, AxisUnit::kBytes, "/s")),
              ElementsAre("0.0 MiB/s", "0.5 MiB/s", "1.0 MiB/s", "1.5 MiB/s"));
  EXPECT_THAT(LabelsOf(RoundScale(1.72, 3.9, AxisUnit::kPlain)), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(LabelsOf(ExactScale(-120, 0, AxisUnit::kSeconds)),
              ElementsAre("-100 s", "-50 s", "0 s"));
  EXPECT_THAT(LabelsOf(RoundScale(0, 12345, AxisUnit::kCount)),
              ElementsAre("0 k", "5 k", "10 k", "15 k"));
  EXPECT_EQ(RoundScale(1.72, 3.9, AxisUnit::kPlain).least, 1);
}

TEST(Scale, OneValueOrNoneHasAnAxisToo) {
  for (const double value : {0.0, 1.0, 2.5, 1e-9, 1e12, -3.0}) {
    const Scale scale = RoundScale(value, value, AxisUnit::kPlain);
    EXPECT_GT(scale.most, scale.least);
    EXPECT_GE(scale.ticks.size(), 2u) << value;
    EXPECT_LE(scale.ticks.size(), 7u) << value;
    EXPECT_GE(scale.ShareOf(value), 0);
  }
  EXPECT_LE(ExactScale(0, 0, AxisUnit::kSeconds).ticks.size(), 6u);
}

TEST(Chart, HasAxesCurvesAKeyAndAGapWhereNothingIsKnown) {
  ChartOf chart{.title = "Loss <x>", .at = {0, 1, 2, 3, 4}};
  chart.curves = {{"a & b", "accent", {0, 1, std::numeric_limits<double>::quiet_NaN(), 2, 2}}};
  chart.x = ExactScale(0, 4, AxisUnit::kSeconds);
  chart.y = RoundScale(0, 2, AxisUnit::kPlain);
  chart.x_name = "time";
  chart.marks = {{1, 1, "here"}};
  chart.lanes = {{"CPUs", {{1, 2, "due"}}}};
  const std::string html = Chart(chart);
  EXPECT_THAT(html, HasSubstr("<figcaption>Loss &lt;x&gt; <span class=\"soft\">over time</span>"));
  EXPECT_THAT(html, HasSubstr("points=\"0,1000 250,500\"/>"));
  EXPECT_THAT(html, HasSubstr("points=\"750,0 1000,0\"/>"));
  EXPECT_THAT(html, HasSubstr(">1 s</text>"));
  EXPECT_THAT(html, HasSubstr("<title>here</title>"));
  EXPECT_THAT(html, HasSubstr(">CPUs</text><rect class=\"ink-due\" x=\"25%\" width=\"25%\""));
  EXPECT_THAT(html, HasSubstr("a &amp; b</li>"));
}

// A picture of a run of a million steps is one that a browser opens, and its outliers are there.
TEST(Chart, LongCurvesKeepTheirExtremes) {
  ChartOf chart{.title = "t", .x = {0, 1e6, {}}, .y = {0, 10, {}}};
  chart.curves = {{"c", "accent", {}}};
  for (int i = 0; i < 1'000'000; ++i) {
    chart.at.push_back(i);
    chart.curves[0].values.push_back(i == 765'432 ? 10 : 1);
  }
  const std::string html = Chart(chart);
  EXPECT_LT(html.size(), 64'000u);
  EXPECT_THAT(html, HasSubstr("765.43,0"));
}

}  // namespace picture_test
}  // namespace tidepool
