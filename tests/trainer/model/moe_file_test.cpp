// Blocks with other experts each: their file, their numbers among all, and their words.
#include "trainer/model/moe/moe_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/moe_text.h"

namespace tidepool::trainer {
namespace moe_file_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GptShape SixBlocks() {
  GptShape shape = FindGptPreset("llama-tiny").value();
  shape.layers = 6;
  return shape;
}

class MoeFile : public ::testing::Test {
 protected:
  MoeFile() {
    std::string name = "/tmp/tidepool-moe-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~MoeFile() override { std::filesystem::remove_all(directory_); }

  Result<std::vector<MoeSizes>> Read(const std::string& text,
                                     const GptShape& shape = SixBlocks()) const {
    const std::string file = directory_ + "/layers.txt";
    std::ofstream(file) << text;
    return ReadMoeFile(file, shape);
  }

  std::string directory_;
};

TEST_F(MoeFile, BlocksHaveWhatTheirLinesSay) {
  auto read = Read(
      "# of a pyramid\n"
      "top-k=1, aux=0\n"
      "layers=1-2, experts=4, ep=4\r\n"
      "\n"
      "  layers = 4 ,experts=8,ep=2,width=24,residual=yes   # wider\n"
      "top-k=2\n"
      "layers=5,experts=16");
  ASSERT_TRUE(read.ok()) << read.status().Format();
  ASSERT_EQ(read->size(), 6U);
  EXPECT_FALSE((*read)[0].on() || (*read)[3].on());
  EXPECT_EQ((*read)[1], (*read)[2]);
  EXPECT_EQ((*read)[1].experts, 4U);
  EXPECT_EQ((*read)[1].ep, 4U);
  EXPECT_EQ((*read)[1].top_k, 1U);
  EXPECT_EQ((*read)[1].aux, 0);
  EXPECT_EQ((*read)[1].width, 176U) << "as wide as the MLP";
  EXPECT_EQ((*read)[4].width, 24U);
  EXPECT_TRUE((*read)[4].residual);
  EXPECT_EQ((*read)[5].top_k, 2U);
  EXPECT_FALSE((*read)[5].residual) << "a line of a block changes no other";

  // What a preset with experts has is the default of each line.
  const GptShape preset = FindGptPreset("moe-tiny").value();
  auto changed = Read("layers=1,experts=2", preset);
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ((*changed)[1].width, 88U);
  EXPECT_FALSE((*changed)[0].on());
}

TEST_F(MoeFile, WhatIsWrongIsNamedWithItsLine) {
  for (const auto& [text, told] :
       {std::pair("layers=0,experts=4\nlayers=0-2,experts=4", "line 2: block 0 stands in line 1"),
        std::pair("\nlayers=6,experts=4",
                  "line 2: layers=6: the model 'llama-tiny' has blocks 0 "
                  "to 5"),
        std::pair("layers=2-1,experts=4", "line 1: layers=2-1: a block or a range"),
        std::pair("layers=,experts=4", "line 1: layers=: a block or a range"),
        std::pair("layers=x,experts=4", "line 1: layers=x"),
        std::pair("layers=0,ep=2", "line 1: it does not say how many experts"),
        std::pair("layers=0,experts=4,capacity=0", "line 1: capacity=0: a number above 0"),
        std::pair("layers=0,experts=4,residual=maybe", "line 1: residual=maybe: yes or no"),
        std::pair("layers=0,every=2,experts=4", "line 1: lines name blocks: every has no meaning"),
        std::pair("layers=0,experts=4,", "line 1: \"\" is no key with a value"),
        std::pair("# none\nlayers=0 experts=4", "line 2: layers=0 experts=4"),
        std::pair("layers=0,expert=4", "did you mean \"experts\"?"),
        std::pair("top-k=1", "no line gives a block experts"),
        std::pair("", "no line gives a block experts")}) {
    const Status refused = Read(text).status();
    EXPECT_EQ(refused.id(), ErrorId::kConfigBadValue) << text;
    EXPECT_THAT(refused.Format(), HasSubstr(told));
    EXPECT_THAT(refused.Format(), HasSubstr("docs/plans.md"));
  }
  EXPECT_EQ(ReadMoeFile(directory_ + "/none", SixBlocks()).status().id(),
            ErrorId::kConfigUnreadable);
  EXPECT_EQ(ReadMoeFile(directory_, SixBlocks()).status().id(), ErrorId::kConfigUnreadable);
}

TEST(IsMoeFile, TellsAFileFromKeys) {
  EXPECT_TRUE(IsMoeFile("layers.txt"));
  EXPECT_TRUE(IsMoeFile("/tmp/a=b"));
  EXPECT_TRUE(IsMoeFile("./a=b"));
  EXPECT_FALSE(IsMoeFile("experts=4"));
  EXPECT_FALSE(IsMoeFile(""));
}

// Experts of 4, 2 and 1 ranks in one model.
GptShape ThreeDegrees() {
  GptShape shape = SixBlocks();
  shape.moe_layers.resize(6);
  shape.moe_layers[0] = {.experts = 8, .width = 16, .ep = 4};
  shape.moe_layers[2] = {.experts = 4, .width = 16, .ep = 2, .residual = true};
  shape.moe_layers[3] = {.experts = 2, .width = 16, .ep = 1};
  shape.moe_layers[5] = shape.moe_layers[0];
  return shape;
}

TEST(MoeLayers, EachDegreeHasGroupsOfItsOwn) {
  const GptShape shape = ThreeDegrees();
  ASSERT_TRUE(CheckGptShape(shape).ok());
  EXPECT_EQ(MoeBlocks(shape), 4U);
  EXPECT_FALSE(IsMixtral(shape));
  EXPECT_THAT(ExpertDegrees(shape), ElementsAre(2, 4));
  EXPECT_EQ(ExpertGroup(shape, 3, 1), 0U);
  EXPECT_EQ(ExpertGroup(shape, 2, 1), 1U);
  EXPECT_EQ(ExpertGroup(shape, 2, 2), 2U);
  EXPECT_EQ(ExpertGroup(shape, 0, 0), 3U);
  EXPECT_EQ(ExpertGroup(shape, 5, 7), 6U);
  const ExpertPlace place = PlaceAmong(2, 3);
  EXPECT_EQ(place.rank, 1U);
  EXPECT_EQ(place.first, 2U);
}

TEST(MoeLayers, UnitsOfParametersAscend) {
  const GptShape shape = ThreeDegrees();
  uint32_t last = 0;
  uint64_t elements = 0;
  size_t residual = 0;
  for (const ParameterNote& note : GptParameters(shape)) {
    elements += note.dims[0] * (note.dims.size() == 2 ? note.dims[1] : 1);
    residual += note.name.find("layers.2.mlp.") != std::string::npos;
    if (note.unit == 0) continue;
    EXPECT_GE(note.unit, last) << note.name;
    last = note.unit;
  }
  EXPECT_EQ(last, 8 + 4 + 2 + 8U);
  EXPECT_EQ(ExpertUnit(shape, 2, 0), 9U);
  EXPECT_EQ(residual, 3U) << "the MLP stays beside the experts of block 2";
  EXPECT_EQ(elements, GptParameterCount(shape));

  const LoraShape lora = MakeLoraShape(shape, 2, 4, "mlp.up_proj").value();
  size_t adapters = 0;
  for (const ParameterNote& note : GptParameters(shape, lora)) adapters += !note.frozen;
  EXPECT_EQ(adapters, 2 * 3U) << "blocks 1, 2 and 4 have an MLP";
}

TEST(MoeLayers, ABlockThatCannotHaveItsExpertsIsNamed) {
  GptShape shape = ThreeDegrees();
  shape.moe_layers[2].ep = 3;
  EXPECT_THAT(CheckGptShape(shape).Format(),
              HasSubstr("4 experts in a block, which 3 ranks cannot share, in block 2"));
  shape = ThreeDegrees();
  shape.moe_layers[3].top_k = 3;
  EXPECT_THAT(CheckGptShape(shape).Format(), HasSubstr("3 of 2 experts, in block 3"));
  shape.moe_layers.pop_back();
  EXPECT_FALSE(CheckGptShape(shape).ok());
}

TEST(MoeText, NamesBlocksThatAreAlikeTogether) {
  EXPECT_EQ(MoeText(ThreeDegrees()),
            "blocks 0,5: 8 experts, 2 a token, shared by 4 ranks, dropless; block 2: 4 experts, 2 "
            "a token, beside the MLP, shared by 2 ranks, dropless; block 3: 2 experts, 2 a token, "
            "dropless");
}

TEST(MoeWords, AreReadAsTheyWere) {
  MoeSizes block{.every = 1,
                 .experts = 6,
                 .top_k = 3,
                 .width = 20,
                 .capacity = 1.1F,
                 .aux = 0.001F,
                 .z = 1e-3F,
                 .residual = true};
  EXPECT_EQ(ReadMoe(MoeWords(block), {}).value(), block);
  block.residual = false;
  block.capacity = 0;
  EXPECT_EQ(ReadMoe(MoeWords(block), {}).value(), block);
  EXPECT_EQ(MoeWords({}), "");
}

}  // namespace moe_file_test
}  // namespace tidepool::trainer
