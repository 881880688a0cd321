#include "trainer/model/gpt_shape.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/model/gpt_init.h"
#include "trainer/model/tiles/tile_places.h"

namespace tidepool::trainer {
namespace gpt_shape_test {

uint64_t ElementsOf(const ParameterNote& note) {
  return std::accumulate(note.dims.begin(), note.dims.end(), uint64_t{1}, std::multiplies<>());
}

TEST(GptPresets, CountTheirParameters) {
  for (const GptShape& shape : GptPresets()) {
    EXPECT_TRUE(CheckGptShape(shape).ok()) << shape.name;
    uint64_t sum = 0;
    for (const ParameterNote& note : GptParameters(shape)) sum += ElementsOf(note);
    EXPECT_EQ(sum, GptParameterCount(shape)) << shape.name;
  }
}

TEST(GptPresets, HaveTheSizesOfTheirNames) {
  const auto count = [](const char* name) {
    return static_cast<double>(GptParameterCount(FindGptPreset(name).value()));
  };
  EXPECT_EQ(count("gpt2-124m"), 124'439'808);  // as published
  EXPECT_EQ(count("gpt2-1.5b"), 1'557'611'200);
  // Scripts/gpu_training.py knows these three numbers.
  EXPECT_EQ(count("gpt2-1.3b"), 1'313'626'112);
  EXPECT_EQ(count("gpt2-4b"), 3'782'697'984);
  EXPECT_EQ(count("gpt2-7b"), 6'654'210'048);
  EXPECT_NEAR(count("tiny"), 100e3, 30e3);
  EXPECT_NEAR(count("small"), 830e3, 10e3);
  EXPECT_NEAR(count("quickstart"), 11e6, 1e6);
  EXPECT_NEAR(count("gpt2-10b"), 10e9, 0.5e9);
  EXPECT_NEAR(count("gpt2-15b"), 15e9, 0.5e9);
  EXPECT_NEAR(count("gpt2-20b"), 20e9, 0.5e9);
  EXPECT_NEAR(count("opt-13b"), 13e9, 0.5e9);
  EXPECT_NEAR(count("opt-30b"), 30e9, 0.5e9);
}

TEST(GptPresets, AnUnknownNameListsTheKnownOnes) {
  const auto found = FindGptPreset("gpt5");
  EXPECT_EQ(found.status().id(), ErrorId::kUsageError);
  EXPECT_NE(found.status().Format().find("quickstart"), std::string::npos);
  EXPECT_FALSE(CheckGptShape({"odd", 256, 64, 2, 3, 64}).ok());
  EXPECT_FALSE(CheckGptShape({"empty", 256, 0, 2, 4, 64}).ok());
}

TEST(GptParameters, NoteDecayAndMultipleUse) {
  const auto notes = GptParameters(FindGptPreset("tiny").value());
  std::set<std::string> names;
  for (const ParameterNote& note : notes) {
    EXPECT_TRUE(names.insert(note.name).second) << note.name;
    EXPECT_EQ(note.multi_use, note.name == "wte.weight") << note.name;
    EXPECT_EQ(note.optimizer_group, note.dims.size() == 2 ? kDecayGroup : kNoDecayGroup)
        << note.name;
  }
  EXPECT_EQ(notes.size(), 2 + 2 * 12 + 2U);
  EXPECT_EQ(notes.front().name, "wte.weight");
  EXPECT_EQ(notes.back().name, "ln_f.bias");
}

// Tiles in the order of their rows, each of as many as fit, with the values of the whole layer.
TEST(LinearTiles, AreTheRowsOfTheLayerInOrder) {
  for (const char* preset : {"tiny", "llama-tiny", "moe-tiny"}) {
    SCOPED_TRACE(preset);
    const GptShape whole = FindGptPreset(preset).value();
    GptShape tiled = whole;
    tiled.tile_elements = 1000;

    std::map<std::string, std::vector<float>> joined;
    uint64_t tiles = 0;
    for (const ParameterNote& note : GptParameters(tiled)) {
      const TilePlace place = PlaceOfTile(note.name, tiled);
      std::vector<float>& values = joined[place.whole];
      ASSERT_EQ(place.begin, values.size()) << note.name;
      values.resize(values.size() + ElementsOf(note));
      InitGptParameter(note.name, tiled, 7, 0, std::span(values).subspan(place.begin));

      const bool is_tile = place.whole != note.name;
      EXPECT_EQ(is_tile, !note.name.ends_with("weight") && !note.name.ends_with("bias"));
      if (!is_tile) continue;
      EXPECT_LE(ElementsOf(note), tiled.tile_elements) << note.name;
      EXPECT_EQ(note.optimizer_group, kDecayGroup) << note.name;
      ++tiles;
    }
    EXPECT_GT(tiles, 20U);

    const std::vector<ParameterNote> notes = GptParameters(whole);
    ASSERT_EQ(joined.size(), notes.size());
    for (const ParameterNote& note : notes) {
      std::vector<float> values(ElementsOf(note));
      InitGptParameter(note.name, whole, 7, 0, values);
      EXPECT_EQ(joined[note.name], values) << note.name;
    }
  }
}

TEST(LinearTiles, LeaveWhatIsSmallOrNoLinearLayerOfABlock) {
  GptShape shape = FindGptPreset("moe-tiny").value();
  EXPECT_EQ(SizesOfLinears(shape).widest_row, 64U);
  EXPECT_EQ(SizesOfLinears(shape).largest, 64U * 64U);
  shape.tile_elements = 64 * 64;  // the largest of attention
  std::vector<std::string> names, whole;
  for (const ParameterNote& note : GptParameters(shape)) names.push_back(note.name);
  shape.tile_elements = 0;
  for (const ParameterNote& note : GptParameters(shape)) whole.push_back(note.name);
  EXPECT_EQ(names, whole) << "experts and tables are larger, and not cut";
  EXPECT_EQ(SizesOfLinears(FindGptPreset("tiny").value()).widest_row, 256U);
  EXPECT_EQ(SizesOfLinears(FindGptPreset("tiny").value()).largest, 256U * 64U);
}

TEST(GptInit, GivesTheSameValuesInAnyPieces) {
  const GptShape shape = FindGptPreset("tiny").value();
  std::vector<float> whole(1001);
  InitGptParameter("h.0.mlp.c_fc.weight", shape, 7, 0, whole);
  for (const uint64_t cut : {1, 2, 500, 999}) {
    std::vector<float> pieces(1001);
    InitGptParameter("h.0.mlp.c_fc.weight", shape, 7, cut, std::span(pieces).subspan(cut));
    InitGptParameter("h.0.mlp.c_fc.weight", shape, 7, 0, std::span(pieces).first(cut));
    EXPECT_EQ(pieces, whole) << cut;
  }
}

TEST(GptInit, DependsOnSeedAndName) {
  const GptShape shape = FindGptPreset("tiny").value();
  const auto first = [&](const char* name, uint64_t seed) {
    float value = 0;
    InitGptParameter(name, shape, seed, 0, {&value, 1});
    return value;
  };
  EXPECT_NE(first("h.0.mlp.c_fc.weight", 1), first("h.0.mlp.c_fc.weight", 2));
  EXPECT_NE(first("h.0.mlp.c_fc.weight", 1), first("h.1.mlp.c_fc.weight", 1));
  EXPECT_EQ(first("h.0.mlp.c_fc.weight", 1), first("h.0.mlp.c_fc.weight", 1));
  EXPECT_EQ(first("h.0.mlp.c_fc.bias", 1), 0.F);
  EXPECT_EQ(first("h.0.ln_1.weight", 1), 1.F);
  EXPECT_EQ(first("ln_f.bias", 1), 0.F);
}

// Mean, deviation, skew and tails of a sample of n against a normal; bounds are about 5 standard
// errors.
TEST(GptInit, IsNormalWithGpt2Deviations) {
  const GptShape shape = FindGptPreset("tiny").value();
  const uint64_t n = 200'000;
  std::vector<float> values(n);
  for (const auto& [name, deviation] :
       {std::pair("wte.weight", 0.02),
        std::pair("h.1.attn.c_proj.weight", 0.02 / std::sqrt(4.0))}) {
    InitGptParameter(name, shape, 3, 0, values);
    double sum = 0, squares = 0, product = 0;
    uint64_t beyond_two = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const double z = values[i] / deviation;
      sum += z;
      squares += z * z;
      beyond_two += std::abs(z) > 2;
      if (i > 0) product += z * values[i - 1] / deviation;
    }
    EXPECT_NEAR(sum / n, 0, 0.012) << name;
    EXPECT_NEAR(squares / n, 1, 0.016) << name;
    EXPECT_NEAR(static_cast<double>(beyond_two) / n, 0.0455, 0.0024) << name;
    EXPECT_NEAR(product / n, 0, 0.012) << name;  // neighbours are independent
  }
}

TEST(LoraInit, IsRandomForAAndZeroForB) {
  const GptShape shape = FindGptPreset("tiny").value();
  std::vector<float> a(64 * 256), other(64 * 256), b(1000, 1.0F);
  InitGptParameter("h.0.mlp.c_proj.lora_A.weight", shape, 1, 0, a);
  InitGptParameter("h.0.mlp.c_proj.lora_A.weight", shape, 2, 0, other);
  InitGptParameter("h.0.mlp.c_proj.lora_B.weight", shape, 1, 0, b);
  EXPECT_NE(a, other);
  EXPECT_EQ(b, std::vector<float>(1000, 0.0F));
  const double squares = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  EXPECT_NEAR(squares / static_cast<double>(a.size()), 1 / (3.0 * 256), 0.1 / (3.0 * 256));
}

}  // namespace gpt_shape_test
}  // namespace tidepool::trainer
