#include "trainer/advice/picture/plan_picture.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "trainer/advice/picture/svg_parts.h"
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
    if (layout_.chunks[step.chunk].resident) return;
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

constexpr double kRightEnd = kPictureSizes.width - kPictureSizes.right;
constexpr double kNoteY = 50, kPlanKeyY = 62, kRowsY = 96;
constexpr double kRowsHeight = 560, kRowMost = 14, kRowLeast = 2;

// Styles in addition to the palette's.
constexpr const char* kPlanStyle =
    R"(.paper{fill:var(--card);stroke:var(--line)}.lane{fill:var(--faint)}
.resident{fill:var(--held)}.coming{fill:var(--coming)}.parameters{fill:var(--complete)}.gradients{fill:var(--updating)}
svg .head{font-weight:bold;font-size:16px}svg .small{fill:var(--soft)})";

const char* KindOf(BlockSpan::Kind kind) {
  if (kind == BlockSpan::Kind::kComing) return "coming";
  return kind == BlockSpan::Kind::kHeld ? "parameters" : "gradients";
}

// 1, 2 or 5 times a power of ten, chosen for at most ten ticks.
uint64_t MomentsBetweenTicks(uint64_t moments) {
  for (uint64_t power = 1;; power *= 10) {
    for (const uint64_t factor : {1, 2, 5}) {
      if (moments / (power * factor) <= 10) return power * factor;
    }
  }
}

class PlanDrawing {
 public:
  PlanDrawing(const AccessSchedule& order, const ChunkLayout& layout, uint64_t blocks)
      : order_(order),
        layout_(layout),
        blocks_(blocks),
        plan_(Planned(order, layout, blocks)),
        moments_(std::max<uint64_t>(order.moments.size(), 1)),
        row_(std::clamp(kRowsHeight / static_cast<double>(layout.chunks.size()), kRowLeast,
                        kRowMost)) {}

  std::string Take(const std::string& title) const {
    const double end = RowY(static_cast<ChunkId>(layout_.chunks.size()));
    return Head(title, end + kPictureSizes.axis) + Rows() + Axis(end) + "</svg>\n";
  }

 private:
  // Rounded, so that neighbours touch and never overlap.
  double XOf(uint64_t moment) const {
    const double x =
        kPictureSizes.plot() * static_cast<double>(moment) / static_cast<double>(moments_);
    return kPictureSizes.left + static_cast<double>(static_cast<int64_t>(x * 100)) / 100;
  }
  double RowY(ChunkId chunk) const { return kRowsY + row_ * static_cast<double>(chunk); }

  std::string Head(const std::string& title, double height) const {
    return SvgHead(title,
                   "The rCache over one step: which chunks have a block, which are on their way, "
                   "and which blocks hold gradients.",
                   kPlanStyle, height) +
           SvgText("small", kPictureSizes.left, kNoteY, Note()) + Key();
  }

  std::string Note() const {
    const StepTraffic traffic = TrafficOf(plan_, layout_);
    const uint64_t chunks = layout_.EvictableChunks(0);
    return std::to_string(blocks_) + " blocks for " + std::to_string(chunks) + " chunks of " +
           FormatBytes(layout_.BlockBytes()) + "; a step fetches " + std::to_string(plan_.fetches) +
           " times and moves " + FormatBytes(traffic.bytes_h2d) + " to the rank and " +
           FormatBytes(traffic.bytes_d2h) + " from it";
  }

  static std::string Key() {
    constexpr std::array<std::pair<const char*, const char*>, 4> kLegend{
        {{"resident", "always resident"},
         {"coming", "may be fetched ahead"},
         {"parameters", "parameters in a block"},
         {"gradients", "gradients in the block"}}};

    std::string text;
    double x = kPictureSizes.left;
    for (const auto& [kind, words] : kLegend) {
      text += SvgRect(kind, {x, kPlanKeyY, 14, 14});
      text += SvgText("small", x + 20, kPlanKeyY + 11, words);
      x += 44 + kPictureSizes.digit * static_cast<double>(std::string(words).size());
    }
    return text;
  }

  std::string Rows() const {
    std::string text;
    for (ChunkId chunk = 0; chunk < layout_.chunks.size(); ++chunk) {
      const bool resident = layout_.chunks[chunk].resident;
      text += SvgRect(resident ? "resident" : "lane",
                      {kPictureSizes.left, RowY(chunk), kPictureSizes.plot(), row_ - row_ / 5});
      if (chunk % ChunksBetweenNumbers() == 0)
        text += SvgText("small end", kPictureSizes.left - 8, RowY(chunk) + row_ / 2 + 4,
                        "chunk " + std::to_string(chunk));
    }

    for (const BlockSpan& span : Spans(order_, layout_, plan_).Take()) {
      const double x = XOf(span.from);
      text += SvgRect(KindOf(span.kind), {x, RowY(span.chunk), XOf(span.to) - x, row_ - row_ / 5});
    }
    return text;
  }

  uint32_t ChunksBetweenNumbers() const { return static_cast<uint32_t>(kRowMost / row_) + 1; }

  std::string Axis(double y) const {
    std::string text;
    for (uint64_t at = 0; at <= moments_; at += MomentsBetweenTicks(moments_)) {
      text += SvgVerticalLine("grid", XOf(at), kRowsY - 6, y);
      text += SvgText("small middle", XOf(at), y + 14, std::to_string(at));
    }

    const auto backward =
        std::find_if(order_.moments.begin(), order_.moments.end(),
                     [](const Moment& moment) { return moment.kind == MomentKind::kGradient; });
    if (backward != order_.moments.end()) {
      const auto at = static_cast<uint64_t>(backward - order_.moments.begin());
      text += SvgVerticalLine("axis", XOf(at), kRowsY - 6, y);
      text += SvgText("small", XOf(at) + 4, y + 32, "the first gradient");
    }
    text += SvgHorizontalLine("axis", y, kPictureSizes.left, kRightEnd);
    return text + SvgText("small end", kRightEnd, y + 32, "moments of the step");
  }

  const AccessSchedule& order_;
  const ChunkLayout& layout_;
  const uint64_t blocks_;
  const Plan plan_;
  const uint64_t moments_;
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
