// Llama's form without LibTorch: published sizes, names, the blocks that parameters belong to, and
// the angles of rotary positions.
#include <cmath>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/model/gpt_init.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/llama_shape.h"
#include "trainer/model/lora.h"

namespace tidepool::trainer {
namespace llama_shape_test {

using Pair = std::pair<uint32_t, uint32_t>;

GptShape Preset(const char* name) {
  return FindGptPreset(name).value();
}

TEST(LlamaPresets, HaveThePublishedNumbersOfParameters) {
  const auto count = [](const char* name) { return GptParameterCount(Preset(name)); };
  EXPECT_EQ(count("llama-1b"), 1'235'814'400U);
  EXPECT_EQ(count("llama-3b"), 3'212'749'824U);
  EXPECT_EQ(count("llama-7b"), 6'738'415'616U);
  EXPECT_EQ(count("llama-8b"), 8'030'261'248U);
  EXPECT_EQ(count("llama-13b"), 13'015'864'320U);
  EXPECT_EQ(count("llama-70b"), 70'553'706'496U);
}

TEST(LlamaPresets, StandAmongTheOthersBySize) {
  uint64_t last = 0;
  for (const GptShape& shape : GptPresets()) {
    if (shape.form == ModelForm::kLlama) {
      EXPECT_GE(GptParameterCount(shape), last) << shape.name;
    }
    last = GptParameterCount(shape);
  }
}

TEST(LlamaParameters, AreNamedAsTransformersNamesThem) {
  const auto notes = GptParameters(Preset("llama-tiny"));
  ASSERT_EQ(notes.size(), 1 + 2 * 9 + 2U);
  EXPECT_EQ(notes[0].name, "model.embed_tokens.weight");
  EXPECT_FALSE(notes[0].multi_use);
  EXPECT_EQ(notes[3].name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(notes[3].dims, (std::vector<uint64_t>{32, 64})) << "two heads of 16";
  EXPECT_EQ(notes[9].name, "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(notes[9].dims, (std::vector<uint64_t>{64, 176}));
  EXPECT_EQ(notes.back().name, "lm_head.weight");

  const auto tied = GptParameters(Preset("llama-1b"));
  EXPECT_TRUE(tied[0].multi_use);
  EXPECT_EQ(tied.back().name, "model.norm.weight");
  for (const ParameterNote& note : notes) {
    EXPECT_EQ(note.optimizer_group, note.dims.size() == 2 ? kDecayGroup : kNoDecayGroup);
    EXPECT_FALSE(IsConv1D(note)) << note.name;
  }
}

TEST(LlamaParameters, BelongToTheirBlocks) {
  GptShape shape = Preset("llama-8b");
  EXPECT_EQ(GptBlocksOf("model.embed_tokens.weight", shape), (Pair{0, 0}));
  EXPECT_EQ(GptBlocksOf("model.layers.17.mlp.up_proj.weight", shape), (Pair{17, 17}));
  EXPECT_EQ(GptBlocksOf("model.norm.weight", shape), (Pair{31, 31}));
  EXPECT_EQ(GptBlocksOf("lm_head.weight", shape), (Pair{31, 31}));
  EXPECT_EQ(GptBlocksOf("model.embed_tokens.weight", Preset("llama-1b")), (Pair{0, 15}));
}

TEST(LlamaSizes, ThatDoNotFitAreRefused) {
  const auto refused = [](void (*change)(GptShape*)) {
    GptShape shape = Preset("llama-tiny");
    change(&shape);
    return !CheckGptShape(shape).ok();
  };
  EXPECT_TRUE(refused([](GptShape* s) { s->llama.kv_heads = 3; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->llama.kv_heads = 0; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->llama.head_size = 15; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->llama.mlp = 0; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->llama.norm_epsilon = std::nan(""); }));
  EXPECT_TRUE(refused([](GptShape* s) { s->llama.rotary_base = 0; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->llama.stretch = {8, 4, 4, 64}; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->vocab = 0; }));
  EXPECT_FALSE(refused([](GptShape* s) { s->llama.stretch = {8, 1, 4, 64}; }));
}

TEST(Rotary, TurnsFromOneRadianDownByPowersOfItsBase) {
  const std::vector<float> turns = RotaryFrequencies({.kv_heads = 1, .head_size = 8, .mlp = 1});
  EXPECT_EQ(turns, (std::vector<float>{1, 0.1F, 0.01F, 0.001F}));
}

// Waves of 2 pi, 63 and 628 positions; of a context of 100 the first fits 16 times, the second 1.6
// times, which is a fifth of the way from 1 to 4, and the others less than once.
TEST(Rotary, IsStretchedWhereItsWavesAreLong) {
  LlamaSizes sizes{.kv_heads = 1, .head_size = 8, .mlp = 1};
  sizes.stretch = {.factor = 8, .low = 1, .high = 4, .first_context = 100};
  const std::vector<float> turns = RotaryFrequencies(sizes);
  EXPECT_EQ(turns[0], 1.0F);
  const double fast = (100 * 0.1 / (2 * M_PI) - 1) / 3;
  EXPECT_NEAR(turns[1], 0.1 * (fast + (1 - fast) / 8), 1e-8);
  EXPECT_EQ(turns[2], 0.01F / 8);
  EXPECT_EQ(turns[3], 0.001F / 8);
}

TEST(LlamaInit, HasOnesForNormsAndSmallerEndsOfBranches) {
  const GptShape shape = Preset("llama-small");
  const auto deviation = [&](const char* name) {
    std::vector<float> values(20'000);
    InitGptParameter(name, shape, 5, 0, values);
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0) / 2e4);
  };
  EXPECT_EQ(deviation("model.layers.1.input_layernorm.weight"), 1);
  EXPECT_EQ(deviation("model.norm.weight"), 1);
  EXPECT_NEAR(deviation("model.layers.1.mlp.up_proj.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("model.layers.1.mlp.down_proj.weight"), 0.02 / std::sqrt(8.0), 1e-3);
  EXPECT_NEAR(deviation("model.layers.1.self_attn.o_proj.weight"), 0.02 / std::sqrt(8.0), 1e-3);
  EXPECT_NEAR(deviation("lm_head.weight"), 0.02, 1e-3);
}

TEST(LlamaAdapters, HaveTheSizesOfTheirLayers) {
  const GptShape shape = Preset("llama-tiny");
  const LoraShape lora = MakeLoraShape(shape, 4, 8, "mlp.down_proj,self_attn.v_proj").value();
  EXPECT_EQ(TargetsText(lora), "self_attn.v_proj,mlp.down_proj");
  const auto notes = GptParameters(shape, lora);
  EXPECT_EQ(notes[1].name, "model.layers.0.self_attn.v_proj.lora_B.weight");
  EXPECT_EQ(notes[1].dims, (std::vector<uint64_t>{32, 4}));
  EXPECT_EQ(notes[2].name, "model.layers.0.mlp.down_proj.lora_A.weight");
  EXPECT_EQ(notes[2].dims, (std::vector<uint64_t>{4, 176}));
  EXPECT_EQ(AdapterColumns(notes[2].name, shape), 176U);

  EXPECT_EQ(TargetsText(MakeLoraShape(shape, 4, 8, "attention").value()),
            "self_attn.q_proj,self_attn.k_proj,self_attn.v_proj,self_attn.o_proj");
  EXPECT_EQ(TargetsText(MakeLoraShape(Preset("tiny"), 4, 8, "attention").value()),
            "attn.c_attn,attn.c_proj");
  const Status unknown = MakeLoraShape(shape, 4, 8, "q_proj").status();
  EXPECT_NE(unknown.Format().find("self_attn.q_proj"), std::string::npos) << unknown.Format();
}

}  // namespace llama_shape_test
}  // namespace tidepool::trainer
