// Experts as text and as parameters, without LibTorch.
#include "trainer/model/moe_text.h"

#include <gtest/gtest.h>

#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"

namespace tidepool::trainer {
namespace moe_text_test {

TEST(ReadMoe, TakesKeysInAnyOrderOverWhatThereIs) {
  const MoeSizes read =
      ReadMoe("top-k=1,experts=16,every=2,capacity=1.25,aux=0,z=1e-3", {}).value();
  EXPECT_EQ(read.every, 2U);
  EXPECT_EQ(read.experts, 16U);
  EXPECT_EQ(read.top_k, 1U);
  EXPECT_EQ(read.capacity, 1.25F);
  EXPECT_EQ(read.aux, 0);
  EXPECT_EQ(read.z, 1e-3F);
  const MoeSizes changed = ReadMoe("capacity=2", read).value();
  EXPECT_EQ(changed.experts, 16U);
  EXPECT_EQ(changed.capacity, 2);
  EXPECT_EQ(ReadMoe("experts=4", {}).value().every, 1U);
}

TEST(ReadMoe, SaysWhichKeyOrValueIsNone) {
  for (const auto& [text, told] :
       {std::pair("experts=0", "experts=0: a whole number from 1"),
        std::pair("capacity=0,experts=2", "capacity=0: a number above 0"),
        std::pair("experts=2,aux=-1", "aux=-1: a number of 0 or more"),
        std::pair("experts=2,residual=1", "residual=1: yes or no"),
        std::pair("experts=2,z=nan", "z=nan"), std::pair("experts=4x", "experts=4x"),
        std::pair("expert=4", "did you mean \"experts\"?"),
        std::pair("experts", "\"experts\" is no key with a value"), std::pair("", "\"\" is no key"),
        std::pair("every=2", "how many experts")}) {
    const Status refused = ReadMoe(text, {}).status();
    EXPECT_EQ(refused.id(), ErrorId::kUsageError);
    EXPECT_NE(refused.Format().find(told), std::string::npos) << refused.Format();
    EXPECT_NE(refused.Format().find("top-k=2"), std::string::npos);
  }
}

TEST(CheckMoe, RefusesWhatAModelCannotHave) {
  const auto refused = [](void (*change)(GptShape*)) {
    GptShape shape = FindGptPreset("moe-tiny").value();
    change(&shape);
    return CheckGptShape(shape).id() == ErrorId::kUsageError;
  };
  EXPECT_FALSE(refused([](GptShape*) {}));
  EXPECT_TRUE(refused([](GptShape* s) { s->form = ModelForm::kGpt2; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->moe.top_k = 5; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->moe.top_k = 0; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->moe.every = 3; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->moe.width = 0; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->moe.capacity = -1; }));
  EXPECT_TRUE(refused([](GptShape* s) { s->moe.ep = 3; }));
  EXPECT_FALSE(refused([](GptShape* s) { s->moe.ep = 2; }));
}

TEST(MoePresets, HaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(GptParameterCount(FindGptPreset("mixtral-8x7b").value()), 46'702'792'704U);
  // Published with two norms of 128 elements a block, which are not here.
  EXPECT_EQ(GptParameterCount(FindGptPreset("qwen-moe-30b").value()),
            30'532'122'624U - 48 * 2 * 128);
}

TEST(MoeParameters, StandInTheBlocksThatHaveThem) {
  GptShape shape = FindGptPreset("llama-tiny").value();
  shape.moe = {.every = 2, .experts = 3, .top_k = 2, .width = 40};
  const auto notes = GptParameters(shape);
  ASSERT_EQ(notes.size(), 1 + 9 + (6 + 1 + 3 * 3) + 2U);
  EXPECT_EQ(notes[7].name, "model.layers.0.mlp.gate_proj.weight");
  EXPECT_EQ(notes[16].name, "model.layers.1.block_sparse_moe.gate.weight");
  EXPECT_EQ(notes[16].dims, (std::vector<uint64_t>{3, 64}));
  EXPECT_EQ(notes[22].name, "model.layers.1.block_sparse_moe.experts.1.w2.weight");
  EXPECT_EQ(notes[22].dims, (std::vector<uint64_t>{64, 40}));
  uint64_t sum = 0;
  for (const ParameterNote& note : notes)
    sum += note.dims[0] * (note.dims.size() == 2 ? note.dims[1] : 1);
  EXPECT_EQ(sum, GptParameterCount(shape));

  // Two of three experts count for a token.
  const double less = GptFlopsPerToken(shape, 0);
  shape.moe.top_k = 3;
  EXPECT_EQ(GptFlopsPerToken(shape, 0) - less, 6.0 * 3 * 64 * 40);
}

TEST(MoeParameters, AreOfTheDataGroupsOfTheirRanks) {
  GptShape shape = FindGptPreset("moe-tiny").value();
  shape.moe.ep = 2;  // of both blocks
  uint32_t groups[3] = {0, 0, 0};
  for (const ParameterNote& note : GptParameters(shape)) {
    ++groups[note.data_group];
    const size_t at = note.name.find(".experts.");
    const uint32_t want = at == std::string::npos ? 0 : note.name[at + 9] < '2' ? 1 : 2;
    EXPECT_EQ(note.data_group, want) << note.name;
  }
  EXPECT_EQ(groups[1], 2 * 2 * 3U);
  EXPECT_EQ(groups[2], 2 * 2 * 3U);
}

TEST(MoeAdapters, LeaveExpertsOut) {
  GptShape shape = FindGptPreset("llama-tiny").value();
  shape.moe = {.every = 2, .experts = 3, .top_k = 2, .width = 40};
  const LoraShape lora = MakeLoraShape(shape, 2, 4, "all").value();
  size_t adapters = 0;
  for (const ParameterNote& note : GptParameters(shape, lora)) adapters += !note.frozen;
  EXPECT_EQ(adapters, 2 * (7 + 4U));
  EXPECT_FALSE(MakeLoraShape(FindGptPreset("moe-tiny").value(), 2, 4, "mlp.up_proj").ok());
}

}  // namespace moe_text_test
}  // namespace tidepool::trainer
