#include "trainer/advice/plan_choice.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

bool IsWhole(const PlanWay& way) {
  return way.exchange == Exchange::kReplicated;
}

std::string Size(uint64_t bytes) {
  return std::to_string(bytes) + " bytes (" + FormatBytes(bytes) + ")";
}

// "zero3, which needs 3145728 bytes (3.00 MiB)" for the presets that fit.
std::string OthersThatFit(const std::vector<PlanWay>& presets, const RcacheLimit& limit) {
  std::string text;
  for (const PlanWay& way : presets) {
    if (way.rcache_bytes_min > limit.bytes) continue;
    text += (text.empty() ? "" : ", or --plan ") + way.name + ", which needs " +
            Size(way.rcache_bytes_min);
  }
  return text;
}

Status DoesNotFit(const PlanWay& way, const std::vector<PlanWay>& presets,
                  const RcacheLimit& limit) {
  const std::string others = OthersThatFit(presets, limit);
  const std::string blocks = std::to_string(way.blocks_min);
  const std::string why = way.name == "zero3"
                              ? "the order of use needs " + blocks + " blocks at once"
                              : "each chunk has a block of its own there: " + blocks;
  const std::string instead =
      others.empty() ? ", or a smaller --chunk-size" : "; or --plan " + others;

  return Status(ErrorId::kRcacheTooSmall, "--plan " + way.name + " needs an rCache of " +
                                              Size(way.rcache_bytes_min) + ", and " + limit.origin +
                                              " is " + Size(limit.bytes))
      .Where("--plan " + way.name)
      .Why(why + ", beside resident chunks")
      .Fix("give --rcache " + std::to_string(way.rcache_bytes_min) + " or more" + instead +
           "; --plan auto takes what there is room for");
}

std::string StepText(const GroupTraffic& step) {
  return FormatBytes(step.fetched) + " to each rank, " + FormatBytes(step.handed_in) +
         " from it and " + FormatBytes(step.between_ranks()) + " from it to other ranks";
}

void WriteWay(const PlanWay& way, JsonWriter* json) {
  json->Field("name", way.name)
      .Field("exchange", IsWhole(way) ? "replicated" : "sharded")
      .Field("blocks", way.blocks);
  json->Field("rcache_bytes", way.rcache_bytes).Field("rcache_bytes_min", way.rcache_bytes_min);

  json->Key("step").BeginObject().Field("fetched", way.step.fetched);
  json->Field("handed_in", way.step.handed_in).Field("gathered", way.step.gathered);
  json->Field("scattered", way.step.scattered).Field("reduced", way.step.reduced).EndObject();
}

}  // namespace

Result<PlanChoice> ChoosePreset(const std::string& name, const std::vector<PlanWay>& presets,
                                const std::optional<RcacheLimit>& limit, const RankStep& step) {
  const PlanWay* found = FindWay(presets, name);
  if (found == nullptr) {
    return Status(ErrorId::kUsageError, "there is no plan \"" + name + "\"")
        .Where("--plan " + name)
        .Fix("choose ddp, zero2, zero3 or auto");
  }

  PlanChoice choice{.way = *found, .presets = presets, .limit = limit};
  if (!limit || found->rcache_bytes <= limit->bytes) return choice;
  if (found->rcache_bytes_min > limit->bytes) return DoesNotFit(*found, presets, *limit);
  choice.way = WayWith(name, found->exchange, step.layout->BlocksIn(step.rank, limit->bytes), step);
  return choice;
}

std::string DescribePlanChoice(const PlanChoice& c) {
  std::string text = "plan      " + c.way.name + ": " + std::to_string(c.way.blocks) +
                     (c.way.blocks == 1 ? " block, " : " blocks, ") +
                     (IsWhole(c.way) ? "whole chunks are fetched, gradients are all-reduced"
                                     : "shards are fetched and gathered, gradients are "
                                       "reduce-scattered") +
                     "; a step moves at most " + StepText(c.way.step) + "\n";

  for (const PlanWay& way : c.presets) {
    if (way.name == c.way.name) continue;
    text +=
        "          " + way.name + " would take an rCache of " + FormatBytes(way.rcache_bytes) +
        " and move " + StepText(way.step) +
        (c.limit && way.rcache_bytes_min > c.limit->bytes ? "; it does not fit " + c.limit->origin
                                                          : "") +
        "\n";
  }
  return text;
}

void WritePlanChoice(const PlanChoice& choice, JsonWriter* json) {
  json->BeginObject();
  WriteWay(choice.way, json);

  json->Key("presets").BeginArray();
  for (const PlanWay& way : choice.presets) {
    json->BeginObject();
    WriteWay(way, json);
    json->EndObject();
  }
  json->EndArray();

  if (choice.limit)
    json->Field("limit_bytes", choice.limit->bytes).Field("limit_origin", choice.limit->origin);
  json->EndObject();
}

}  // namespace tidepool::trainer
