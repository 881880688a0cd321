#include "trainer/model/lora.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text/suggest.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace {

constexpr std::string_view kAllTargets = "all";

// A linear layer of each block.
struct Target {
  std::string_view name;
  uint64_t out, in;
  bool of_attention;
};

bool HasMlp(const GptShape& shape, uint32_t layer) {
  const MoeSizes moe = MoeOf(shape, layer);
  return !moe.on() || moe.residual;
}

// In order of use within a block.
std::vector<Target> TargetsOf(const GptShape& shape) {
  const uint64_t c = shape.hidden;
  if (shape.form == ModelForm::kGpt2) {
    return {{"attn.c_attn", 3 * c, c, true},
            {"attn.c_proj", c, c, true},
            {"mlp.c_fc", 4 * c, c, false},
            {"mlp.c_proj", c, 4 * c, false}};
  }

  const LlamaSizes& llama = shape.llama;
  const uint64_t queries = uint64_t{shape.heads} * llama.head_size,
                 keys = uint64_t{llama.kv_heads} * llama.head_size;
  std::vector<Target> targets = {
      {"self_attn.q_proj", queries, c, true}, {"self_attn.k_proj", keys, c, true},
      {"self_attn.v_proj", keys, c, true},    {"self_attn.o_proj", c, queries, true},
      {"mlp.gate_proj", llama.mlp, c, false}, {"mlp.up_proj", llama.mlp, c, false},
      {"mlp.down_proj", c, llama.mlp, false}};
  // If each block has experts alone, there is no MLP.
  bool any_mlp = false;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) any_mlp |= HasMlp(shape, layer);
  if (!any_mlp) targets.resize(4);
  return targets;
}

// The columns of the matrix that a layer has under `ending`.
uint64_t ColumnsOf(const std::string& name, std::string_view ending, const GptShape& shape) {
  for (const Target& target : TargetsOf(shape)) {
    if (name.ends_with("." + std::string(target.name) + std::string(ending))) return target.in;
  }
  return shape.hidden;
}

std::string BlockName(const GptShape& shape, uint32_t layer) {
  return (shape.form == ModelForm::kLlama ? "model.layers." : "h.") + std::to_string(layer) + ".";
}

Result<std::vector<std::string>> ReadTargets(const std::vector<Target>& all,
                                             const std::string& text) {
  std::vector<std::string_view> words;
  std::string names;
  for (const Target& target : all) {
    words.push_back(target.name);
    names += std::string(target.name) + ", ";
  }
  words.insert(words.end(), {kAttentionTargets, kAllTargets});

  std::vector<std::string> wanted;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    wanted.push_back(text.substr(begin, end - begin));
    begin = end + 1;

    if (std::find(words.begin(), words.end(), wanted.back()) != words.end()) continue;
    return Status(ErrorId::kUsageError, "there is no linear layer \"" + wanted.back() + "\"" +
                                            DidYouMean(wanted.back(), words))
        .Where("--lora-targets " + text)
        .Fix("name layers of a block with commas between: " + names + "or all, or attention");
  }

  const auto is_wanted = [&wanted](std::string_view name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };

  std::vector<std::string> targets;
  for (const Target& target : all) {
    if (is_wanted(target.name) || is_wanted(kAllTargets) ||
        (target.of_attention && is_wanted(kAttentionTargets)))
      targets.emplace_back(target.name);
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
  TP_ASSIGN_OR_RETURN(lora.targets, ReadTargets(TargetsOf(shape), targets));
  return lora;
}

uint64_t AdapterColumns(const std::string& name, const GptShape& shape) {
  return ColumnsOf(name, ".lora_A.weight", shape);
}

uint64_t LayerColumns(const std::string& name, const GptShape& shape) {
  return ColumnsOf(name, ".weight", shape);
}

std::string TargetsText(const LoraShape& lora) {
  std::string text;
  for (const std::string& target : lora.targets) text += (text.empty() ? "" : ",") + target;
  return text;
}

std::vector<ParameterNote> GptParameters(const GptShape& shape, const LoraShape& lora) {
  std::vector<ParameterNote> base = GptParameters(shape), notes;
  if (!lora.on()) return base;

  const std::vector<Target> targets = TargetsOf(shape);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const Target& target : targets) {
      // Experts have no adapters.
      const bool is_there = target.of_attention || HasMlp(shape, layer);
      if (!lora.Has(target.name) || !is_there) continue;
      const std::string module = BlockName(shape, layer) + std::string(target.name);
      notes.push_back(AdapterNote(module, ".lora_A.weight", lora.rank, target.in));
      notes.push_back(AdapterNote(module, ".lora_B.weight", target.out, lora.rank));
    }
  }

  for (ParameterNote& note : base) {
    note.frozen = true;
    notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace tidepool::trainer
