// The picture of a plan: its spans are those of the replay, never more at once than blocks, and all
// that is drawn lies inside and apart.
#include "trainer/advice/picture/plan_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "tests/trainer/plan/twenty_layers.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace plan_picture_test {

using Kind = BlockSpan::Kind;

class PlanPicture : public ::testing::Test {
 protected:
  std::vector<BlockSpan> SpansIn(uint64_t blocks) const {
    return BlockSpans(order_, layout_, blocks);
  }
  const ChunkLayout layout_ = TwentyLayers();
  const AccessSchedule order_ = ForeseeOrder(TwentyLayersInTurn(), layout_, 0, 1);
};

TEST_F(PlanPicture, HoldsWhatEachMomentUses) {
  for (const uint64_t blocks : {3U, 9U, 20U}) {
    SCOPED_TRACE(blocks);
    const std::vector<BlockSpan> spans = SpansIn(blocks);
    for (uint64_t at = 0; at < order_.moments.size(); ++at) {
      const auto holds = [&spans, at](ChunkId chunk) {
        return std::count_if(spans.begin(), spans.end(), [&](const BlockSpan& span) {
          return span.chunk == chunk && span.kind != Kind::kComing && span.from <= at &&
                 at < span.to;
        });
      };
      for (const ChunkId chunk : order_.moments[at].chunks)
        EXPECT_EQ(holds(chunk), 1) << "moment " << at;

      uint64_t in_use = 0;
      for (ChunkId chunk = 0; chunk < kTwenty; ++chunk)
        in_use += static_cast<uint64_t>(holds(chunk));
      EXPECT_LE(in_use, blocks) << "moment " << at;
    }
  }
}

TEST_F(PlanPicture, HasASpanForEachFetchAndEachGradient) {
  const std::vector<BlockSpan> spans = SpansIn(6);
  const auto count = [&spans](Kind kind) {
    return static_cast<uint64_t>(std::count_if(
        spans.begin(), spans.end(), [kind](const BlockSpan& span) { return span.kind == kind; }));
  };
  const Plan plan = BeladySimulate(order_, {EvictableMask(layout_), 6, {}}).value();
  EXPECT_EQ(count(Kind::kGradients), kTwenty);
  EXPECT_EQ(count(Kind::kHeld), plan.fetches);
  EXPECT_EQ(count(Kind::kComing),
            static_cast<uint64_t>(std::count_if(
                plan.steps.begin(), plan.steps.end(),
                [](const PlanStep& step) { return step.earliest < step.needed_at; })));
  EXPECT_GT(count(Kind::kComing), 10U);
}

struct Shape {
  std::string kind;
  double x, y, right, bottom;
};

TEST_F(PlanPicture, DrawsEverythingInsideAndNothingOverAnother) {
  const std::string svg = PlanSvg(order_, layout_, 6, "tiny <1> & more");
  EXPECT_NE(svg.find("tiny &lt;1&gt; &amp; more"), std::string::npos);
  EXPECT_NE(svg.find("6 blocks for 20 chunks of 128 KiB"), std::string::npos);

  // Positions across are percent of the plot, whose height comes last.
  std::smatch box;
  ASSERT_TRUE(std::regex_search(
      svg, box,
      std::regex("class=\"plot\" x=\"64\" y=\"[0-9.]+\" width=\"90%\" height=\"([0-9.]+)\"")));
  const double width = 100, height = std::stod(box[1]);
  const std::string plot = svg.substr(static_cast<size_t>(box.position()));
  const std::regex form(
      "<rect class=\"ink-(\\w+)\"( x=\"([0-9.]+)%\")? width=\"([0-9.]+)%\"( y=\"([0-9.]+)\")? "
      "height=\"([0-9.]+)\"/>");
  std::vector<Shape> spans;
  for (std::sregex_iterator at(plot.begin(), plot.end(), form), end; at != end; ++at) {
    const std::smatch& m = *at;
    const double x = m[3].length() > 0 ? std::stod(m[3]) : 0,
                 y = m[6].length() > 0 ? std::stod(m[6]) : 0;
    const Shape shape{m[1], x, y, x + std::stod(m[4]), y + std::stod(m[7])};
    EXPECT_TRUE(shape.right <= width + 1e-6 && shape.bottom <= height) << m[0];
    const bool is_span = shape.kind == "coming" || shape.kind == "held" || shape.kind == "going";
    if (is_span) spans.push_back(shape);
  }

  EXPECT_EQ(spans.size(), SpansIn(6).size());
  constexpr double kTouch = 0.005;
  for (size_t i = 0; i < spans.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Shape &a = spans[i], &b = spans[j];
      EXPECT_FALSE(a.x < b.right - kTouch && b.x < a.right - kTouch && a.y < b.bottom - kTouch &&
                   b.y < a.bottom - kTouch)
          << a.kind << " at " << a.x << ", " << a.y << " over " << b.kind;
    }
  }
}

}  // namespace plan_picture_test
}  // namespace tidepool::trainer
