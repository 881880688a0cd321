#include "trainer/model/lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/text/suggest.h"

namespace tidepool::trainer {
namespace {

struct Target {
  std::string_view name;
  uint64_t out, in;  // in units of the hidden size
};

// In the order of their use in a block.
constexpr std::array<Target, 4> kTargets{
    {{"attn.c_attn", 3, 1}, {"attn.c_proj", 1, 1}, {"mlp.c_fc", 4, 1}, {"mlp.c_proj", 1, 4}}};
constexpr std::array<std::string_view, 5> kTargetWords{kTargets[0].name, kTargets[1].name,
                                                       kTargets[2].name, kTargets[3].name, "all"};

Result<std::vector<std::string>> ReadTargets(const std::string& text) {
  std::vector<std::string> wanted;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    wanted.push_back(text.substr(begin, end - begin));
    begin = end + 1;

    if (std::find(kTargetWords.begin(), kTargetWords.end(), wanted.back()) != kTargetWords.end())
      continue;
    return Status(ErrorId::kUsageError, "there is no linear layer \"" + wanted.back() + "\"" +
                                            DidYouMean(wanted.back(), kTargetWords))
        .Where("--lora-targets " + text)
        .Fix(
            "name layers of a block with commas between: attn.c_attn, attn.c_proj, mlp.c_fc, "
            "mlp.c_proj, or all");
  }

  const auto is_wanted = [&wanted](std::string_view name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end() ||
           std::find(wanted.begin(), wanted.end(), "all") != wanted.end();
  };

  std::vector<std::string> targets;
  for (const Target& target : kTargets) {
    if (is_wanted(target.name)) targets.emplace_back(target.name);
  }
  return targets;
}

ParameterNote AdapterNote(const std::string& module, const char* part, uint64_t rows,
                          uint64_t columns) {
  return {.name = module + part,
          .dims = {rows, columns},
          .optimizer_group = kDecayGroup,
          .data_group = 0,
          .multi_use = false};
}

}  // namespace

bool LoraShape::Has(std::string_view target) const {
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

Result<LoraShape> MakeLoraShape(const GptShape& shape, uint32_t rank, float alpha,
                                const std::string& targets) {
  if (rank == 0 || rank > shape.hidden) {
    return Status(ErrorId::kUsageError, "adapters of rank " + std::to_string(rank) +
                                            " over layers of " + std::to_string(shape.hidden))
        .Where("--lora-rank " + std::to_string(rank))
        .Why("an adapter is smaller than its layer, and not empty")
        .Fix("give a rank from 1 to " + std::to_string(shape.hidden) + "; 8 is usual");
  }

  if (!std::isfinite(alpha) || alpha <= 0) {
    return Status(ErrorId::kUsageError,
                  "adapters that count " + std::to_string(alpha) + " / rank times do nothing")
        .Where("--lora-alpha")
        .Fix("give a positive number; twice the rank is usual");
  }

  LoraShape lora{.rank = rank, .alpha = alpha, .targets = {}};
  TP_ASSIGN_OR_RETURN(lora.targets, ReadTargets(targets));
  return lora;
}

std::string TargetsText(const LoraShape& lora) {
  std::string text;
  for (const std::string& target : lora.targets) text += (text.empty() ? "" : ",") + target;
  return text;
}

std::vector<ParameterNote> GptParameters(const GptShape& shape, const LoraShape& lora) {
  std::vector<ParameterNote> base = GptParameters(shape), notes;
  if (!lora.on()) return base;

  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const Target& target : kTargets) {
      if (!lora.Has(target.name)) continue;
      const std::string module = "h." + std::to_string(layer) + "." + std::string(target.name);
      notes.push_back(AdapterNote(module, ".lora_A.weight", lora.rank, target.in * shape.hidden));
      notes.push_back(AdapterNote(module, ".lora_B.weight", target.out * shape.hidden, lora.rank));
    }
  }

  for (ParameterNote& note : base) {
    note.frozen = true;
    notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace tidepool::trainer
