// The picture of a step: tags are closed, everything lies inside, and nothing covers anything else
// of its lane.
#include "trainer/advice/timeline_svg.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/trainer/advice/paper_models.h"

namespace tidepool::trainer {
namespace timeline_svg_test {

struct Shape {
  std::string kind;
  double x = 0, y = 0, width = 0, height = 0;

  bool Covers(const Shape& other) const {
    constexpr double kEqual = 1e-6;
    return x < other.x + other.width - kEqual && other.x < x + width - kEqual &&
           y < other.y + other.height - kEqual && other.y < y + height - kEqual;
  }
};

constexpr std::array<double, 3> kWidths{420, 1280, 3840};

// "12.5%" of a picture of this width, or a number of pixels, in pixels.
double InPixels(const std::string& text, double width) {
  const double number = std::stod(text);
  return text.ends_with("%") ? number / 100 * width : number;
}

// False for what is shown in wider pictures only: class "w720" from 720 pixels on.
bool IsShown(const std::string& kind, double width) {
  std::smatch room;
  return !std::regex_search(kind, room, std::regex("\\bw([0-9]+)")) || std::stod(room[1]) <= width;
}

// Everything lies in an <svg> inside of the margins.
double InnerOf(double wide) {
  return wide - 24;
}

// Squares of the key, whose corners are round, are left out.
std::vector<Shape> RectsOf(const std::string& svg, double wide = InnerOf(kWidths[1])) {
  const std::regex form(
      "<rect class=\"([a-z -]+)\"( x=\"([-0-9.%]+)\")? width=\"([-0-9.%]+)\"( "
      "y=\"([-0-9.]+)\")? height=\"([-0-9.]+)\"/>");
  std::vector<Shape> rects;
  for (std::sregex_iterator at(svg.begin(), svg.end(), form), end; at != end; ++at) {
    const std::smatch& m = *at;
    const auto number = [](const std::string& text) { return text.empty() ? "0" : text; };
    rects.push_back({m[1], InPixels(number(m[3]), wide), std::stod(number(m[6])),
                     InPixels(m[4], wide), std::stod(m[7])});
  }
  return rects;
}

// Texts with room around each letter: what a wide font takes.
Shape TextOf(const std::string& kind, double x, double y, size_t letters) {
  const double letter = kind == "headline" ? 9.6 : kind.empty() ? 6.6 : 6.1;
  const double width = letter * static_cast<double>(letters);
  if (kind.ends_with("end")) x -= width;
  if (kind.ends_with("middle") || kind.starts_with("letter")) x -= width / 2;
  return {kind, x, y - 10, width, 12};
}

std::vector<Shape> TextsOf(const std::string& svg, double wide) {
  const std::regex key(
      "<svg x=\"(0|50%)\" y=\"([0-9.]+)\" width=\"50%\" height=\"18\"><svg class=\"swatch\"[^\n]*?"
      "</svg><text x=\"22\" y=\"12\">([^<]*)</text></svg>");
  std::vector<Shape> texts;
  for (std::sregex_iterator at(svg.begin(), svg.end(), key), end; at != end; ++at) {
    const std::smatch& m = *at;
    const double x = InPixels(m[1], InnerOf(wide)) + 22, y = std::stod(m[2]) + 12;
    texts.push_back(TextOf("", x, y, static_cast<size_t>(m[3].length())));
  }
  EXPECT_EQ(texts.size(), 5U);

  const std::string other = std::regex_replace(svg, key, "");
  const std::regex form(
      "<text class=\"([a-z0-9 ]+)\" x=\"([-0-9.%]+)\" y=\"([-0-9.]+)\">([^<]*)</text>");
  for (std::sregex_iterator at(other.begin(), other.end(), form), end; at != end; ++at) {
    const std::smatch& m = *at;
    if (!IsShown(m[1], wide)) continue;
    texts.push_back(TextOf(m[1], InPixels(m[2], InnerOf(wide)), std::stod(m[3]),
                           static_cast<size_t>(m[4].length())));
  }
  return texts;
}

// Each tag that is opened is closed, in order.
bool IsWellFormed(const std::string& svg) {
  const std::regex tag("<(/?)([a-z]+)[^<>]*?(/?)>");
  std::vector<std::string> open;
  for (std::sregex_iterator at(svg.begin(), svg.end(), tag), end; at != end; ++at) {
    const std::smatch& m = *at;
    if (m[3].length() > 0) continue;
    if (m[1].length() == 0) {
      open.push_back(m[2]);
    } else if (open.empty() || open.back() != m[2]) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty() && svg.starts_with("<svg ") && svg.find('&') == std::string::npos;
}

const std::set<std::string> kWork{"ink-coming", "ink-complete", "ink-nvme", "ink-held",
                                  "ink-updating"};

std::string PictureOf(const PaperModel& model, const std::vector<uint32_t>& gpus) {
  auto advice = AdvisePipeline(QuestionOf(model, gpus));
  return advice.ok() ? TimelineSvg(advice->best(), "a step of " + std::string(model.name)) : "";
}

TEST(TimelineSvg, CoversNothingByAnythingElse) {
  for (const std::vector<uint32_t>& gpus : {std::vector<uint32_t>{4}, {1, 3}}) {
    for (const PaperModel& model : {kPaperModels[2], kPaperModels[3]}) {
      const std::string svg = PictureOf(model, gpus);
      ASSERT_TRUE(IsWellFormed(svg)) << model.name;

      // By lane: they come in the order of time.
      std::map<double, std::vector<Shape>> lanes;
      uint32_t frames = 0;
      const std::vector<Shape> rects = RectsOf(svg);
      ASSERT_FALSE(rects.empty());
      const Shape& paper = rects.front();
      for (const Shape& rect : rects) {
        EXPECT_GE(rect.x, paper.x);
        EXPECT_LE(rect.x + rect.width, paper.x + paper.width + 1e-6);
        EXPECT_LE(rect.y + rect.height, paper.y + paper.height);
        if (kWork.count(rect.kind) != 0) lanes[rect.y].push_back(rect);
        if (rect.kind == "ink-faint") ++frames;
      }
      // GPUs, and two links a complex.
      uint32_t expected = static_cast<uint32_t>(2 * gpus.size());
      for (const uint32_t count : gpus) expected += count;
      EXPECT_EQ(frames, expected);
      EXPECT_EQ(lanes.size(), expected);

      for (auto& [y, lane] : lanes) {
        std::sort(lane.begin(), lane.end(),
                  [](const Shape& a, const Shape& b) { return a.x < b.x; });
        for (size_t i = 1; i < lane.size(); ++i)
          ASSERT_FALSE(lane[i].Covers(lane[i - 1])) << model.name << " at " << y;
      }
    }
  }
}

TEST(TimelineSvg, HasTextsThatCoverNoOtherAtAnyWidth) {
  for (const PaperModel& model : kPaperModels) {
    const std::string svg = PictureOf(model, {2, 2});
    // The axis says what it shows.
    EXPECT_NE(svg.find(">time from the begin of the step</text>"), std::string::npos);
    for (const double wide : kWidths) {
      SCOPED_TRACE(std::string(model.name) + " at " + std::to_string(wide));
      const std::vector<Shape> texts = TextsOf(svg, wide);
      ASSERT_GT(texts.size(), 18U);
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_GE(texts[i].x, 0) << texts[i].kind;
        EXPECT_LE(texts[i].x + texts[i].width, InnerOf(wide)) << texts[i].kind;
        for (size_t j = i + 1; j < texts.size(); ++j)
          EXPECT_FALSE(texts[i].Covers(texts[j])) << i << " and " << j;
      }
      // The numbers of stages lie on what is computed: their middle is in a box, or where two meet.
      const std::vector<Shape> rects = RectsOf(svg, InnerOf(wide));
      for (const Shape& text : texts) {
        if (!text.kind.starts_with("letter")) continue;
        EXPECT_TRUE(std::any_of(rects.begin(), rects.end(), [&](const Shape& rect) {
          const double middle = text.x + text.width / 2;
          return (rect.kind == "ink-coming" || rect.kind == "ink-complete") && rect.Covers(text) &&
                 rect.x <= middle + 0.05 && middle <= rect.x + rect.width + 0.05;
        }));
      }
    }
  }
}

TEST(PlannedSpans, AreTheComputationsAndCopiesOfTheSchedule) {
  auto advice = AdvisePipeline(QuestionOf(kPaperModels[0], {1, 1}));
  ASSERT_TRUE(advice.ok());
  const PipelineSchedule& schedule = advice->best().schedule;
  const std::vector<PlannedSpan> spans = PlannedSpans(advice->best());
  EXPECT_EQ(spans.size(), schedule.computes.size() + schedule.spans.size());
  std::set<std::string> lanes;
  int64_t end_ns = 0;
  for (const PlannedSpan& span : spans) {
    EXPECT_LE(span.start_ns, span.end_ns);
    lanes.insert(span.lane);
    end_ns = std::max(end_ns, span.end_ns);
  }
  EXPECT_EQ(lanes, (std::set<std::string>{"GPU 0", "GPU 1", "complex 0 down", "complex 0 up",
                                          "complex 1 down", "complex 1 up"}));
  EXPECT_EQ(end_ns, schedule.step_ns);
}

TEST(TimelineSvg, WritesTitlesAsText) {
  auto advice = AdvisePipeline(QuestionOf(kPaperModels[0], {2}));
  ASSERT_TRUE(advice.ok());
  const std::string svg = TimelineSvg(advice->best(), "a < b & c");
  EXPECT_NE(svg.find("<title id=\"title\">a &lt; b &amp; c</title>"), std::string::npos);
}

}  // namespace timeline_svg_test
}  // namespace tidepool::trainer
