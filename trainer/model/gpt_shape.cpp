#include "trainer/model/gpt_shape.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "trainer/model/llama_shape.h"
#include "trainer/model/moe_text.h"
#include "trainer/model/tiles/linear_tiles.h"

namespace tidepool::trainer {
namespace {

GptShape Llama(GptShape shape, const LlamaSizes& sizes) {
  shape.form = ModelForm::kLlama;
  shape.llama = sizes;
  return shape;
}

GptShape Moe(const GptShape& shape, const LlamaSizes& sizes, const MoeSizes& moe) {
  GptShape made = Llama(shape, sizes);
  made.moe = moe;
  return made;
}

// scripts/quickstart trains small: some minutes on one core teach it words. GPT-2's vocabulary has
// 50,257 ids, OPT's 50,272. 4b, 10b, 15b and 20b are from Elixir v2, table 6; 1.3b and 7b
// complement 4b in the GPU benchmark; the opt presets have OPT's sizes in GPT-2's form. llama-1b
// and 3b are Llama 3.2, 7b and 13b Llama 2, 8b and 70b Llama 3, each with the context of its first
// training. qwen-moe-30b has the sizes of Qwen3-30B-A3B without its norms of heads.
const GptShape kPresets[] = {
    {"tiny", 256, 64, 2, 4, 64},
    Llama({"llama-tiny", 256, 64, 2, 4, 64}, {.kv_heads = 2, .head_size = 16, .mlp = 176}),
    Moe({"moe-tiny", 256, 64, 2, 4, 64}, {.kv_heads = 2, .head_size = 16, .mlp = 176},
        {.every = 1, .experts = 4, .top_k = 2, .width = 88}),
    {"small", 256, 64, 4, 4, 128},
    Llama({"llama-small", 256, 128, 4, 8, 256}, {.kv_heads = 2, .head_size = 32, .mlp = 688}),
    {"quickstart", 256, 128, 6, 6, 384},
    {"gpt2-124m", 50257, 1024, 12, 12, 768},
    {"gpt2-350m", 50257, 1024, 24, 16, 1024},
    {"gpt2-774m", 50257, 1024, 36, 20, 1280},
    Llama({"llama-1b", 128256, 8192, 16, 32, 2048},
          {.kv_heads = 8, .head_size = 64, .mlp = 8192, .tied = true, .rotary_base = 5e5}),
    {"gpt2-1.3b", 50257, 1024, 24, 16, 2048},
    {"gpt2-1.5b", 50257, 1024, 48, 25, 1600},
    Llama({"llama-3b", 128256, 8192, 28, 24, 3072},
          {.kv_heads = 8, .head_size = 128, .mlp = 8192, .tied = true, .rotary_base = 5e5}),
    {"gpt2-4b", 50257, 1024, 32, 24, 3072},
    {"gpt2-7b", 50257, 1024, 32, 32, 4096},
    Llama({"llama-7b", 32000, 4096, 32, 32, 4096},
          {.kv_heads = 32, .head_size = 128, .mlp = 11008}),
    Llama({"llama-8b", 128256, 8192, 32, 32, 4096},
          {.kv_heads = 8, .head_size = 128, .mlp = 14336, .rotary_base = 5e5}),
    {"gpt2-10b", 50257, 1024, 48, 32, 4096},
    {"opt-13b", 50272, 2048, 40, 40, 5120},
    Llama({"llama-13b", 32000, 4096, 40, 40, 5120},
          {.kv_heads = 40, .head_size = 128, .mlp = 13824}),
    {"gpt2-15b", 50257, 1024, 18, 64, 8192},
    {"gpt2-20b", 50257, 1024, 24, 64, 8192},
    {"opt-30b", 50272, 2048, 48, 56, 7168},
    Moe({"qwen-moe-30b", 151936, 32768, 48, 32, 2048},
        {.kv_heads = 4, .head_size = 128, .mlp = 6144, .rotary_base = 1e6, .norm_epsilon = 1e-6},
        {.every = 1, .experts = 128, .top_k = 8, .width = 768, .aux = 0.001F}),
    Moe({"mixtral-8x7b", 32000, 32768, 32, 32, 4096},
        {.kv_heads = 8, .head_size = 128, .mlp = 14336, .rotary_base = 1e6},
        {.every = 1, .experts = 8, .top_k = 2, .width = 14336, .aux = 0.02F}),
    Llama({"llama-70b", 128256, 8192, 80, 64, 8192},
          {.kv_heads = 8, .head_size = 128, .mlp = 28672, .rotary_base = 5e5}),
};

void AddNormOrLinear(std::vector<ParameterNote>* notes, const std::string& module,
                     std::vector<uint64_t> weight_dims) {
  const bool is_matrix = weight_dims.size() == 2;
  const uint64_t out = weight_dims.front();

  notes->push_back({.name = module + ".weight",
                    .dims = std::move(weight_dims),
                    .optimizer_group = is_matrix ? kDecayGroup : kNoDecayGroup,
                    .data_group = 0,
                    .multi_use = false});
  notes->push_back({.name = module + ".bias",
                    .dims = {out},
                    .optimizer_group = kNoDecayGroup,
                    .data_group = 0,
                    .multi_use = false});
}

// The parameters of GPT-2's form, with whole layers.
std::vector<ParameterNote> Gpt2Parameters(const GptShape& shape) {
  const uint64_t c = shape.hidden;
  std::vector<ParameterNote> notes;

  notes.push_back({.name = "wte.weight",
                   .dims = {shape.vocab, c},
                   .optimizer_group = kDecayGroup,
                   .data_group = 0,
                   .multi_use = true});
  notes.push_back({.name = "wpe.weight",
                   .dims = {shape.context, c},
                   .optimizer_group = kDecayGroup,
                   .data_group = 0,
                   .multi_use = false});

  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = "h." + std::to_string(layer);
    AddNormOrLinear(&notes, block + ".ln_1", {c});
    AddNormOrLinear(&notes, block + ".attn.c_attn", {3 * c, c});
    AddNormOrLinear(&notes, block + ".attn.c_proj", {c, c});
    AddNormOrLinear(&notes, block + ".ln_2", {c});
    AddNormOrLinear(&notes, block + ".mlp.c_fc", {4 * c, c});
    AddNormOrLinear(&notes, block + ".mlp.c_proj", {c, 4 * c});
  }
  AddNormOrLinear(&notes, "ln_f", {c});
  return notes;
}

}  // namespace

std::span<const GptShape> GptPresets() {
  return kPresets;
}

Result<GptShape> FindGptPreset(const std::string& name) {
  std::string known;
  for (const GptShape& shape : kPresets) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  return Status(ErrorId::kUsageError, "there is no preset '" + name + "'")
      .Where("--preset " + name)
      .Fix("choose one of " + known);
}

Status CheckGptShape(const GptShape& shape) {
  const bool sizes_ok = shape.vocab > 0 && shape.context > 0 && shape.layers > 0 &&
                        shape.heads > 0 && shape.hidden > 0;

  if (sizes_ok) TP_RETURN_IF_ERROR(CheckMoe(shape));
  if (sizes_ok && shape.form == ModelForm::kLlama) return CheckLlamaSizes(shape);
  if (sizes_ok && shape.hidden % shape.heads == 0) return {};
  return Status(ErrorId::kUsageError,
                "the model shape '" + shape.name + "' has vocab " + std::to_string(shape.vocab) +
                    ", context " + std::to_string(shape.context) + ", layers " +
                    std::to_string(shape.layers) + ", heads " + std::to_string(shape.heads) +
                    ", hidden " + std::to_string(shape.hidden))
      .Fix("give positive sizes; heads must divide hidden");
}

std::string TokenTableName(const GptShape& shape) {
  return shape.form == ModelForm::kLlama ? kLlamaTokenTable : "wte.weight";
}

std::vector<ParameterNote> GptParameters(const GptShape& shape) {
  std::vector<ParameterNote> notes =
      shape.form == ModelForm::kLlama ? LlamaParameters(shape) : Gpt2Parameters(shape);
  CutLinears(shape, &notes);
  return notes;
}

bool HasTiedHead(const GptShape& shape) {
  return shape.form != ModelForm::kLlama || shape.llama.tied;
}

std::pair<uint32_t, uint32_t> GptBlocksOf(const std::string& name, const GptShape& shape) {
  const uint32_t last = shape.layers - 1;
  const bool is_llama = shape.form == ModelForm::kLlama;
  if (name == TokenTableName(shape)) return {0, HasTiedHead(shape) ? last : 0};
  if (name.starts_with("wpe.")) return {0, 0};

  const std::string_view blocks = is_llama ? "model.layers." : "h.";
  if (!name.starts_with(blocks)) return {last, last};
  const auto block = static_cast<uint32_t>(std::stoul(name.substr(blocks.size())));
  return {block, block};
}

bool IsConv1D(const ParameterNote& note) {
  return note.dims.size() == 2 && note.name.starts_with("h.");
}

uint64_t GptParameterCount(const GptShape& shape) {
  if (shape.form == ModelForm::kLlama) return LlamaParameterCount(shape);
  const uint64_t c = shape.hidden;
  // Matrices 3+1+4+4; biases 3+1+4+1, and two norms with 2 each.
  const uint64_t block = 12 * c * c + 13 * c;
  return (uint64_t{shape.vocab} + shape.context) * c + shape.layers * block + 2 * c;
}

double GptFlopsPerToken(const GptShape& shape, uint64_t tokens) {
  if (shape.form == ModelForm::kLlama) return LlamaFlopsPerToken(shape, tokens);
  const double c = shape.hidden, layers = shape.layers;
  return 6.0 * (layers * 12.0 * c * c + c * shape.vocab) +
         layers * 12.0 * c * static_cast<double>(tokens);
}

}  // namespace tidepool::trainer
