#include "trainer/run/describe_groups.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/moe_text.h"

namespace tidepool::trainer {
namespace {

constexpr std::string_view kExperts = ".experts.";

// What lies with the ranks of one data group.
struct GroupParts {
  uint64_t chunks = 0, parameters = 0;
  uint64_t bytes = 0;        // of all chunks, with padding
  uint64_t bytes_shard = 0;  // of one rank's shards
  bool has_dense = false;    // what belongs to no expert
  // The experts of each block that has some, ascending.
  std::map<uint32_t, std::vector<uint32_t>> experts;
};

bool ShowsGroups(const RunPlan& plan) {
  return plan.layout.world > 1 && HasExperts(plan.shape);
}

// By data group.
std::vector<GroupParts> PartsOf(const RunPlan& plan) {
  const ChunkLayout& layout = plan.layout;
  std::vector<GroupParts> groups(layout.data_groups.size());
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    GroupParts& group = groups[layout.chunks[chunk].data_group];
    ++group.chunks;
    group.parameters += layout.chunks[chunk].used_elements;
    group.bytes += layout.ChunkBytes(chunk);
    group.bytes_shard += layout.ShardBytes(chunk);
  }

  for (const ParameterPlace& place : layout.parameters) {
    GroupParts& group = groups[layout.chunks[place.chunk].data_group];
    const size_t at = place.name.find(kExperts);
    if (at == std::string::npos) {
      group.has_dense = true;
      continue;
    }

    const auto number =
        static_cast<uint32_t>(std::strtoul(place.name.c_str() + at + kExperts.size(), nullptr, 10));
    std::vector<uint32_t>& of_block = group.experts[GptBlocksOf(place.name, plan.shape).first];
    if (of_block.empty() || of_block.back() != number) of_block.push_back(number);
  }
  return groups;
}

// "experts 0-3 of blocks 1,3, experts 0-1 of block 2".
std::string ExpertsText(const GroupParts& group) {
  std::map<std::vector<uint32_t>, std::vector<uint32_t>> blocks_of;
  for (const auto& [block, experts] : group.experts) blocks_of[experts].push_back(block);
  std::string text;
  for (const auto& [experts, blocks] : blocks_of) {
    text += (text.empty() ? "" : ", ") + NumbersText("expert", experts) + " of " +
            NumbersText("block", blocks);
  }
  return text;
}

std::string ContentText(const GroupParts& group) {
  if (group.experts.empty()) return "all but experts";
  return (group.has_dense ? "all but experts, and " : "") + ExpertsText(group);
}

}  // namespace

std::string DescribeGroups(const RunPlan& plan) {
  if (!ShowsGroups(plan)) return {};
  const std::vector<GroupParts> groups = PartsOf(plan);

  std::string text;
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupParts& group = groups[i];
    const std::string share = group.bytes_shard < group.bytes
                                  ? ", of which each has " + FormatBytes(group.bytes_shard)
                                  : "";

    text += (i == 0 ? "groups    " : "          ");
    text += NumbersText("rank", plan.layout.data_groups[i]) + ": " + FormatCount(group.parameters) +
            " parameters in " + std::to_string(group.chunks) + " chunks, " +
            FormatBytes(group.bytes) + share + ": " + ContentText(group) + "\n";
  }
  return text;
}

void WriteGroups(const RunPlan& plan, JsonWriter* json) {
  if (!ShowsGroups(plan)) return;
  const std::vector<GroupParts> groups = PartsOf(plan);
  json->Key("groups").BeginArray();
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupParts& group = groups[i];
    json->BeginObject().Key("ranks").BeginArray();
    for (const Rank rank : plan.layout.data_groups[i]) json->Uint(rank);
    json->EndArray().Field("chunks", group.chunks).Field("params", group.parameters);
    json->Field("bytes", group.bytes).Field("shard_bytes", group.bytes_shard);

    json->Field("dense", group.has_dense).Key("experts").BeginArray();
    for (const auto& [block, experts] : group.experts) {
      json->BeginObject().Field("layer", block).Key("experts").BeginArray();
      for (const uint32_t expert : experts) json->Uint(expert);
      json->EndArray().EndObject();
    }
    json->EndArray().EndObject();
  }
  json->EndArray();
}

}  // namespace tidepool::trainer
