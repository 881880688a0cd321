#include "trainer/run/expert_plan.h"

#include <algorithm>
#include <span>

#include "base/formats/content_hash.h"
#include "trainer/model/llama_shape.h"
#include "trainer/model/moe/moe_file.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/moe_text.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kDataGroupsMax = 64;  // of a job (shm/spec/spec_limits.h)
constexpr size_t kHashDigits = 16;     // of a file's hash, in the note of a run

// The keys of --moe, for each block with experts.
Status TakeKeys(const std::string& moe, GptShape* shape) {
  if (shape->moe_layers.empty()) {
    TP_ASSIGN_OR_RETURN(shape->moe, ReadMoe(moe, shape->moe));
    if (shape->moe.width == 0) shape->moe.width = shape->llama.mlp;
    return {};
  }

  for (MoeSizes& block : shape->moe_layers) {
    if (!block.on()) continue;
    TP_ASSIGN_OR_RETURN(block, ReadMoe(moe, block));
  }
  return {};
}

// True if both have the same tensors.
bool AreAlike(const GptShape& a, const GptShape& b) {
  for (uint32_t layer = 0; layer < a.layers; ++layer) {
    const MoeSizes one = MoeOf(a, layer), other = MoeOf(b, layer);
    const bool is_same =
        one.experts == other.experts &&
        (!one.on() || (one.width == other.width && one.residual == other.residual));
    if (!is_same) return false;
  }
  return true;
}

}  // namespace

Result<GptShape> WithExperts(GptShape shape, const std::string& moe, const std::string& weights) {
  if (moe.empty()) return shape;
  const GptShape before = shape;
  if (IsMoeFile(moe)) {
    TP_ASSIGN_OR_RETURN(shape.moe_layers, ReadMoeFile(moe, before));
    shape.moe = {};
  } else {
    TP_RETURN_IF_ERROR(TakeKeys(moe, &shape));
  }

  TP_RETURN_IF_ERROR(CheckMoe(shape));
  if (weights.empty() || AreAlike(shape, before)) return shape;
  return Status(ErrorId::kUsageError, "--moe " + moe + ": the weights of " + weights + " have " +
                                          (HasExperts(before) ? MoeText(before) : "no experts"))
      .Where("--moe " + moe)
      .Fix(
          "leave every, experts, width and residual out, or give a file with those of the weights; "
          "top-k, ep, capacity, aux and z may be given");
}

std::string NoteOfExperts(const GptShape& shape, const std::string& moe) {
  if (!IsMoeFile(moe)) return moe;
  std::string words;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const MoeSizes block = MoeOf(shape, layer);
    words += MoeWords(block) + ",ep=" + std::to_string(block.ep) + "\n";
  }

  const std::string hash = HexOf(HashOf(std::as_bytes(std::span(words))));
  return "a file of hash " + hash.substr(0, kHashDigits);
}

Status CheckExpertRanks(const GptShape& shape, const RunOptions& options, uint32_t world) {
  const std::vector<uint32_t> degrees = ExpertDegrees(shape);
  if (degrees.empty()) return {};
  const auto bad = [&](const std::string& what) {
    return Status(ErrorId::kUsageError, what).Where("--moe " + options.model.moe);
  };

  size_t groups = 1;
  for (const uint32_t ep : degrees) {
    groups += ep;
    if (world % ep == 0) continue;
    return bad("ep=" + std::to_string(ep) + " ranks are to share experts, and there are " +
               std::to_string(world))
        .Fix("give an ep that divides the number of ranks, or more ranks");
  }

  if (groups > kDataGroupsMax) {
    return bad("the experts have " + std::to_string(groups - 1) + " data groups, and a job has " +
               std::to_string(kDataGroupsMax) + " at most, one of them for all else")
        .Fix("give a smaller ep, or fewer that differ: each has as many groups as ranks");
  }

  if (options.adapters.rank > 0 || !options.adapters.base.empty())
    return bad("ranks share no experts where adapters are trained").Fix("leave ep out");
  return {};
}

std::vector<std::vector<Rank>> ExpertDataGroups(const GptShape& shape, uint32_t world) {
  std::vector<std::vector<Rank>> groups;
  for (const uint32_t ep : ExpertDegrees(shape)) {
    if (groups.empty()) groups.resize(1);
    const size_t first = groups.size();
    groups.resize(first + ep);
    for (Rank rank = 0; rank < world; ++rank) groups[first + rank % ep].push_back(rank);
  }
  for (Rank rank = 0; !groups.empty() && rank < world; ++rank) groups[0].push_back(rank);
  return groups;
}

std::vector<std::vector<Rank>> ExpertRanks(const GptShape& shape, Rank rank) {
  std::vector<std::vector<Rank>> groups;
  for (const uint32_t ep : ExpertDegrees(shape)) {
    groups.emplace_back();
    for (uint32_t i = 0; i < ep; ++i) groups.back().push_back(PlaceAmong(ep, rank).first + i);
  }
  return groups;
}

std::vector<std::string> TablesThatStay(const GptShape& shape,
                                        const std::vector<ParameterNote>& notes) {
  if (!HasExperts(shape) && shape.tile_elements == 0) return {};
  const auto is_table = [](const ParameterNote& note) {
    return note.name == kLlamaTokenTable || note.name == kLlamaHead || note.name == "wpe.weight";
  };
  const auto elements = [](const ParameterNote& note) {
    return note.dims.size() == 2 ? note.dims[0] * note.dims[1] : note.dims.front();
  };

  uint64_t largest = 0;
  for (const ParameterNote& note : notes) {
    if (!is_table(note) && !note.multi_use) largest = std::max(largest, elements(note));
  }

  std::vector<std::string> tables;
  for (const ParameterNote& note : notes) {
    if (is_table(note) && !note.multi_use && elements(note) > largest) tables.push_back(note.name);
  }
  return tables;
}

}  // namespace tidepool::trainer
