// A model of Llama's form: the textbook's equations, bits under recomputation, and generating text.
// Against transformers: tests/python/test_llama.py.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/model/recomputation.h"
#include "trainer/model/generate.h"
#include "trainer/model/gpt.h"

namespace tidepool::trainer {
namespace llama_test {

GptShape Shape(bool tied = false) {
  GptShape shape{"llama", 61, 16, 2, 4, 24};
  shape.form = ModelForm::kLlama;
  shape.llama = {.kv_heads = 2, .head_size = 8, .mlp = 40, .tied = tied};
  return shape;
}

std::shared_ptr<Gpt> MakeModel(const GptShape& shape, const LoraShape& lora = {}) {
  auto model = std::make_shared<Gpt>(shape, at::TensorOptions().dtype(at::kFloat), lora);
  InitGpt(model.get(), 11);
  return model;
}

at::Tensor Tokens(int64_t batch, int64_t tokens, int64_t shift = 0) {
  return (at::arange(shift, shift + batch * tokens) * 7 % 61).view({batch, tokens});
}

TEST(Llama, RegistersTheParametersOfTheTable) {
  for (const bool tied : {false, true}) {
    const Gpt model(Shape(tied), at::TensorOptions().device(at::kMeta));
    const auto notes = GptParameters(Shape(tied));
    const auto parameters = model.named_parameters();
    ASSERT_EQ(parameters.size(), notes.size());
    for (size_t i = 0; i < notes.size(); ++i) EXPECT_EQ(parameters[i].key(), notes[i].name);
  }
}

// One block of one text, head by head, with loops where the model has tables and expanded heads.
TEST(Llama, IsTheTextbooksModel) {
  GptShape shape = Shape();
  shape.layers = 1;
  const auto model = MakeModel(shape);
  const auto p = model->named_parameters();
  const at::NoGradGuard no_gradients;
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    at::Tensor weight = p[std::string("model.layers.0.") + norm + ".weight"];
    weight.mul_(at::arange(24) * 0.1 + 0.5);
  }
  const int64_t count = 9;
  const at::Tensor tokens = Tokens(1, count);

  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return x / (x.square().mean(-1, true) + 1e-5).sqrt() * p[name + ".weight"];
  };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return x.matmul(p["model.layers.0." + name + ".weight"].t());
  };
  // [count][8] of one head: the pair (i, i + 4) turns by position / 10000^(2 i / 8).
  const auto turn = [&](const at::Tensor& x) {
    at::Tensor y = x.clone();
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t i = 0; i < 4; ++i) {
        const double angle = static_cast<double>(t) * std::pow(1e4, -static_cast<double>(i) / 4);
        const double a = x[t][i].item<double>(), b = x[t][i + 4].item<double>();
        y[t][i] = a * std::cos(angle) - b * std::sin(angle);
        y[t][i + 4] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
    return y;
  };

  at::Tensor x = p["model.embed_tokens.weight"].index_select(0, tokens[0]);
  const at::Tensor n = norm(x, "model.layers.0.input_layernorm");
  const at::Tensor q = linear(n, "self_attn.q_proj"), k = linear(n, "self_attn.k_proj"),
                   v = linear(n, "self_attn.v_proj");
  std::vector<at::Tensor> mixed;
  for (int64_t head = 0; head < 4; ++head) {
    const auto of = [](const at::Tensor& t, int64_t h) { return t.slice(1, h * 8, h * 8 + 8); };
    const int64_t shared = head / 2;
    at::Tensor scores = turn(of(q, head)).matmul(turn(of(k, shared)).t()) / std::sqrt(8.0);
    scores = scores.masked_fill(at::ones({count, count}, at::kBool).triu(1), -INFINITY);
    mixed.push_back(scores.softmax(-1).matmul(of(v, shared)));
  }
  x = x + linear(at::cat(mixed, 1), "self_attn.o_proj");
  const at::Tensor m = norm(x, "model.layers.0.post_attention_layernorm");
  const at::Tensor gate = linear(m, "mlp.gate_proj");
  x = x + linear(gate * gate.sigmoid() * linear(m, "mlp.up_proj"), "mlp.down_proj");
  const at::Tensor logits = norm(x, "model.norm").matmul(p["lm_head.weight"].t());
  EXPECT_LT((logits - model->Forward(tokens)[0]).abs().max().item<float>(), 1e-5F);
}

TEST(Llama, TiedOnesReadTheTableTwice) {
  const auto model = MakeModel(Shape(true));
  model->Loss(Tokens(1, 8), Tokens(1, 8, 1)).backward();
  const at::Tensor gradient = model->named_parameters()["model.embed_tokens.weight"].grad();
  EXPECT_GT(gradient[60].abs().max().item<float>(), 0) << "an id that no text has: of the head";
}

TEST(Llama, RecomputationGivesTheSameBits) {
  ExpectRecomputationChangesNoBit(MakeModel(Shape()).get(), MakeModel(Shape()).get(), Tokens(2, 16),
                                  Tokens(2, 16, 1));
}

TEST(Llama, ItsStagesGiveTheWholeModelsLoss) {
  const auto model = MakeModel(Shape());
  const at::Tensor tokens = Tokens(2, 16), targets = Tokens(2, 16, 1);
  const at::Tensor hidden = model->RunBlocks(1, 2, model->RunBlocks(0, 1, tokens));
  EXPECT_TRUE(model->LossBehind(hidden, targets).equal(model->Loss(tokens, targets)));
}

TEST(Llama, AdaptersAddTheirProduct) {
  const GptShape shape = Shape();
  const LoraShape lora = MakeLoraShape(shape, 3, 6, "all").value();
  const auto base = MakeModel(shape), adapted = MakeModel(shape, lora);
  const at::Tensor tokens = Tokens(2, 16);
  EXPECT_TRUE(adapted->Forward(tokens).equal(base->Forward(tokens)));

  const at::NoGradGuard no_gradients;
  auto parameters = adapted->named_parameters(), merged = base->named_parameters();
  size_t layers = 0;
  for (auto& item : parameters) {
    const size_t at = item.key().find("lora_B.weight");
    if (at == std::string::npos) continue;
    ++layers;
    const std::string layer = item.key().substr(0, at);
    item.value().copy_(
        at::arange(item.value().numel()).remainder(7).sub(3).mul(0.01).view_as(item.value()));
    merged[layer + "weight"].add_(item.value().matmul(parameters[layer + "lora_A.weight"]), 2);
  }
  EXPECT_EQ(layers, 2 * 7U);
  const at::Tensor difference = (adapted->Forward(tokens) - base->Forward(tokens)).abs().max();
  EXPECT_LT(difference.item<float>(), 1e-4F);
}

TEST(Llama, ItsCacheOfKeysAndValuesChangesNothingButRounding) {
  const auto model = MakeModel(Shape());
  const at::Tensor tokens = Tokens(1, 16);
  KvCache cache;
  for (int64_t seen = 5; seen <= 16; ++seen) {
    const at::Tensor fresh = tokens.narrow(1, seen == 5 ? 0 : seen - 1, seen == 5 ? 5 : 1);
    const at::Tensor cached = model->NextLogits(fresh, &cache),
                     whole = model->NextLogits(tokens.narrow(1, 0, seen));
    EXPECT_LT((cached - whole).abs().max().item<float>(), 1e-5F) << seen;
  }
  EXPECT_EQ(cache.keys[0].sizes(), at::IntArrayRef({1, 2, 16, 8})) << "two heads, not four";
}

TEST(Llama, GoesOnWhereATextOutgrowsTheContext) {
  const auto model = MakeModel(Shape());
  const auto text = Generate(model.get(), {1, 2, 3}, {.tokens = 40, .temperature = 0});
  ASSERT_TRUE(text.ok()) << text.status().Format();
  EXPECT_EQ(text.value().size(), 40U);
}

}  // namespace llama_test
}  // namespace tidepool::trainer
