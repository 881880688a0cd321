#include "trainer/advice/picture/plan_picture.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/picture/chart.h"
#include "base/picture/svg.h"
#include "base/picture/svg_file.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace {

Plan Planned(const AccessSchedule& order, const ChunkLayout& layout, uint64_t blocks) {
  Result<Plan> plan = BeladySimulate(order, {EvictableMask(layout), blocks, {}});
  TP_CHECK(plan.ok(), "the order runs in so many blocks");
  return std::move(plan).value();
}

// Follows the plan through the moments.
class Spans {
 public:
  Spans(const AccessSchedule& order, const ChunkLayout& layout, const Plan& plan)
      : order_(order), layout_(layout), since_(layout.chunks.size(), kNeverUsed) {
    size_t step = 0;
    for (uint64_t at = 0; at < order.moments.size(); ++at) {
      for (; step < plan.steps.size() && plan.steps[step].needed_at == at; ++step)
        Take(plan.steps[step]);
      Enter(order.moments[at], at);
    }
    for (ChunkId chunk = 0; chunk < since_.size(); ++chunk)
      End(chunk, BlockSpan::Kind::kHeld, order.moments.size());
  }

  std::vector<BlockSpan> Take() { return std::move(spans_); }

 private:
  void Take(const PlanStep& step) {
    if (step.victim != kNoChunk) End(step.victim, BlockSpan::Kind::kHeld, step.earliest);
    if (step.chunk == kNoChunk || layout_.chunks[step.chunk].resident) return;
    if (step.fetch && step.earliest < step.needed_at)
      spans_.push_back({step.chunk, BlockSpan::Kind::kComing, step.earliest, step.needed_at});
    since_[step.chunk] = step.needed_at;
  }

  void Enter(const Moment& moment, uint64_t at) {
    if (moment.kind == MomentKind::kUse) return;
    const ChunkId chunk = moment.subject;
    if (moment.kind == MomentKind::kSubmit) return End(chunk, BlockSpan::Kind::kGradients, at + 1);
    if (since_[chunk] == kNeverUsed) return;
    End(chunk, BlockSpan::Kind::kHeld, at);
    since_[chunk] = at;
  }

  void End(ChunkId chunk, BlockSpan::Kind kind, uint64_t at) {
    const uint64_t from = std::exchange(since_[chunk], kNeverUsed);
    if (from != kNeverUsed && from < at) spans_.push_back({chunk, kind, from, at});
  }

  const AccessSchedule& order_;
  const ChunkLayout& layout_;
  std::vector<uint64_t> since_;  // by ChunkId: begin of the open span; kNeverUsed: none
  std::vector<BlockSpan> spans_;
};

// In pixels. Names of rows stand to the left of the plot.
constexpr double kPlanWidth = 1280, kNames = 64, kPlanGap = 8, kPlanAxis = 20, kPlanAxisName = 16;
constexpr double kRowsHeight = 560, kRowMost = 14, kRowLeast = 2;
constexpr int kPlanTicks = 8;

const char* InkOf(BlockSpan::Kind kind) {
  if (kind == BlockSpan::Kind::kComing) return "coming";
  return kind == BlockSpan::Kind::kHeld ? "held" : "going";
}

class PlanDrawing {
 public:
  PlanDrawing(const AccessSchedule& order, const ChunkLayout& layout, uint64_t blocks)
      : order_(order),
        layout_(layout),
        blocks_(blocks),
        plan_(Planned(order, layout, blocks)),
        moments_(ExactScale(0, static_cast<double>(std::max<uint64_t>(order.moments.size(), 1)),
                            AxisUnit::kCount, kPlanTicks)),
        row_(std::clamp(kRowsHeight / static_cast<double>(layout.chunks.size()), kRowLeast,
                        kRowMost)) {}

  std::string Take(const std::string& title) const {
    SvgFile file(title,
                 "The rCache over one step: which chunks have a block, which are on their way, and "
                 "which blocks hold gradients.");
    file.AddTitle();
    file.AddWords(Note());
    file.Add("", kPlanGap);
    file.AddKey({{"resident", "always resident"},
                 {"coming", "may be fetched ahead"},
                 {"held", "parameters in a block"},
                 {"going", "gradients in the block"}});

    file.Add("", kPlanGap);
    const double floor = RowY(static_cast<ChunkId>(layout_.chunks.size())),
                 height = floor + kPlanAxis + kPlanAxisName;
    // A width in percent takes no pixels away: with the names beside it the plot fits 420 of them.
    file.Add("<svg class=\"inner\" width=\"93%\" height=\"" + Place(file.y() + height) +
                 "\"><svg class=\"plot\" x=\"" + Place(kNames) + "\" y=\"" + Place(file.y()) +
                 "\" width=\"90%\" height=\"" + Place(height) + "\">\n" + Rows() + Axis(floor) +
                 "</svg></svg>",
             height);
    return file.Take(kPlanWidth);
  }

 private:
  // Rounded, so that neighbours touch and never overlap.
  double ShareOf(uint64_t moment) const {
    const double share = moments_.ShareOf(static_cast<double>(moment));
    return static_cast<double>(static_cast<int64_t>(share * 10'000)) / 10'000;
  }
  double RowY(ChunkId chunk) const { return row_ * static_cast<double>(chunk); }

  std::string Note() const {
    const StepTraffic traffic = TrafficOf(plan_, layout_);
    const uint64_t chunks = layout_.EvictableChunks(0);
    return Counted(blocks_, "block") + " for " + Counted(chunks, "chunk") + " of " +
           FormatBytes(layout_.BlockBytes()) + "; a step fetches " +
           Counted(plan_.fetches, "time") + " and moves " + FormatBytes(traffic.bytes_h2d) +
           " to the rank and " + FormatBytes(traffic.bytes_d2h) + " from it";
  }

  std::string Rows() const {
    const double height = row_ - row_ / 5;
    std::string text;
    for (ChunkId chunk = 0; chunk < layout_.chunks.size(); ++chunk) {
      const bool resident = layout_.chunks[chunk].resident;
      text +=
          SvgRect(resident ? "ink-resident" : "ink-faint", {.y = RowY(chunk), .height = height});
      if (chunk % ChunksBetweenNumbers() == 0)
        text +=
            SvgText("tick end", "-8", RowY(chunk) + row_ / 2 + 4, "chunk " + std::to_string(chunk));
      text += "\n";
    }

    for (const BlockSpan& span : Spans(order_, layout_, plan_).Take()) {
      const double from = ShareOf(span.from);
      text += SvgRect(std::string("ink-") + InkOf(span.kind),
                      {Across(from), RowY(span.chunk), Across(ShareOf(span.to) - from), height}) +
              "\n";
    }
    return text;
  }

  uint32_t ChunksBetweenNumbers() const { return static_cast<uint32_t>(kRowMost / row_) + 1; }

  std::string Axis(double floor) const {
    const double below = floor + 14 + kPlanAxisName;
    std::string text = AxisBelow(moments_, 0, floor, floor + 14);
    const auto backward =
        std::find_if(order_.moments.begin(), order_.moments.end(),
                     [](const Moment& moment) { return moment.kind == MomentKind::kGradient; });
    if (backward != order_.moments.end()) {
      const double at = ShareOf(static_cast<uint64_t>(backward - order_.moments.begin()));
      // Its words are to its left, where the name of the axis does not reach.
      text += SvgVertical("axis", Across(at), 0, below - 10) +
              SvgText("tick end", Across(at), below, "the first gradient");
    }
    return text + SvgText("tick end", "100%", below, "moments of the step");
  }

  const AccessSchedule& order_;
  const ChunkLayout& layout_;
  const uint64_t blocks_;
  const Plan plan_;
  const Scale moments_;
  const double row_;  // height
};

}  // namespace

std::vector<BlockSpan> BlockSpans(const AccessSchedule& order, const ChunkLayout& layout,
                                  uint64_t blocks) {
  return Spans(order, layout, Planned(order, layout, blocks)).Take();
}

std::string PlanSvg(const AccessSchedule& order, const ChunkLayout& layout, uint64_t blocks,
                    const std::string& title) {
  return PlanDrawing(order, layout, blocks).Take(title);
}

}  // namespace tidepool::trainer
