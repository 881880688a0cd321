// Experts against loops over tokens, their routers' losses by numbers, empty and full experts, and
// what is no number. Against transformers: tests/python/test_moe.py.
#include "trainer/model/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <ATen/ATen.h>

#include "tests/trainer/model/recomputation.h"
#include "trainer/model/gpt.h"
#include "trainer/model/errors/model_error.h"

namespace tidepool::trainer {
namespace experts_test {

GptShape Shape(uint32_t every = 1) {
  GptShape shape{"moe", 61, 16, 2, 4, 24};
  shape.form = ModelForm::kLlama;
  shape.llama = {.kv_heads = 2, .head_size = 8, .mlp = 40};
  shape.moe = {.every = every, .experts = 5, .top_k = 2, .width = 16};
  return shape;
}

std::shared_ptr<Gpt> MakeModel(const GptShape& shape) {
  auto model = std::make_shared<Gpt>(shape, at::TensorOptions().dtype(at::kFloat));
  InitGpt(model.get(), 11);
  const at::NoGradGuard no_gradients;
  for (auto& item : model->named_parameters())
    if (item.key().ends_with("moe.gate.weight")) item.value().mul_(20);  // so that it decides
  return model;
}

at::Tensor Tokens(int64_t batch, int64_t tokens, int64_t shift = 0) {
  return (at::arange(shift, shift + batch * tokens) * 7 % 61).view({batch, tokens});
}

// One block's experts, with x of [1][T][C].
class OneBlock {
 public:
  explicit OneBlock(const MoeSizes& moe) {
    shape.layers = 1;
    shape.moe = moe;
    model = MakeModel(shape);
    parameters = model->named_parameters();
    experts = std::make_unique<Experts>(shape, 0, parameters, BlockContext{&losses, &exchange});
  }
  at::Tensor Parameter(const std::string& name) const { return parameters[kPath + name]; }
  at::Tensor Probabilities(const at::Tensor& x) const {
    return at::softmax(x[0].matmul(Parameter("block_sparse_moe.gate.weight").t()), -1);
  }
  at::Tensor Expert(int64_t i, const at::Tensor& x) const {
    const std::string name = "block_sparse_moe.experts." + std::to_string(i) + ".";
    const at::Tensor gate = x.matmul(Parameter(name + "w1.weight").t());
    return (gate * gate.sigmoid() * x.matmul(Parameter(name + "w3.weight").t()))
        .matmul(Parameter(name + "w2.weight").t());
  }

  static constexpr const char* kPath = "model.layers.0.";
  GptShape shape = Shape();
  std::shared_ptr<Gpt> model;
  NamedTensors parameters;
  RouterLosses losses;
  TokenExchange exchange = NoExchange();
  std::unique_ptr<Experts> experts;
};

at::Tensor Activations(int64_t tokens) {
  return at::sin(at::arange(tokens * 24) * 0.7).view({1, tokens, 24});
}

TEST(Experts, AddWhatEachTokensExpertsGive) {
  const OneBlock block({.every = 1, .experts = 5, .top_k = 2, .width = 16, .aux = 0});
  const at::NoGradGuard no_gradients;
  const at::Tensor x = Activations(13), p = block.Probabilities(x);
  const at::Tensor result = block.experts->Run(x);
  for (int64_t t = 0; t < 13; ++t) {
    const auto [values, chosen] = at::topk(p[t], 2);
    at::Tensor want = at::zeros({24});
    for (int64_t k = 0; k < 2; ++k)
      want += values[k] / values.sum() * block.Expert(chosen[k].item<int64_t>(), x[0][t]);
    EXPECT_LT((result[0][t] - want).abs().max().item<float>(), 1e-6F) << t;
  }
}

// Room for ceil(0.5 * 2 * 13 / 5) = 3: first choices have it first, in the order of the tokens.
TEST(Experts, DropWhatFindsNoRoomLastChoicesFirst) {
  const OneBlock block(
      {.every = 1, .experts = 5, .top_k = 2, .width = 16, .capacity = 0.5F, .aux = 0});
  const at::NoGradGuard no_gradients;
  const at::Tensor x = Activations(13), p = block.Probabilities(x);
  const auto [values, chosen] = at::topk(p, 2, -1);
  std::vector<int> taken(5);
  at::Tensor want = at::zeros({13, 24});
  int dropped = 0;
  for (int64_t k = 0; k < 2; ++k) {
    for (int64_t t = 0; t < 13; ++t) {
      const auto expert = chosen[t][k].item<int64_t>();
      if (++taken[static_cast<size_t>(expert)] > 3) {
        ++dropped;
        continue;
      }
      want[t] += values[t][k] / values[t].sum() * block.Expert(expert, x[0][t]);
    }
  }
  EXPECT_GT(dropped, 3);
  EXPECT_LT((block.experts->Run(x)[0] - want).abs().max().item<float>(), 1e-6F);
}

TEST(Experts, TheirRoutersLossesAreThoseOfThePapers) {
  OneBlock block({.every = 1, .experts = 5, .top_k = 2, .width = 16, .aux = 0.3F, .z = 0.2F});
  const at::Tensor x = Activations(13), p = block.Probabilities(x);
  const at::Tensor logits = x[0].matmul(block.Parameter("block_sparse_moe.gate.weight").t());
  const at::Tensor chosen = std::get<1>(at::topk(p, 2, -1));
  at::Tensor aux = at::zeros({});
  for (int64_t i = 0; i < 5; ++i)
    aux = aux + 5 * chosen.eq(i).sum().to(at::kFloat) / 13 * p.select(1, i).mean();
  const at::Tensor want = 0.3 * aux + 0.2 * logits.exp().sum(-1).log().square().mean();

  block.losses.Begin();
  const at::Tensor result = block.experts->Run(x);
  block.losses.End();
  const at::Tensor loss = block.losses.AddTo((result * 0).sum());
  EXPECT_NEAR(loss.item<float>(), want.item<float>(), 1e-6F);

  // Three times the loss has three times the gradient, though the term is no part of its graph.
  (loss * 3).backward();
  at::Tensor gate = block.Parameter("block_sparse_moe.gate.weight");
  const at::Tensor got = gate.grad().clone();
  gate.mutable_grad().reset();
  (want * 3).backward();
  EXPECT_LT((got - gate.grad()).abs().max().item<float>(), 1e-6F);
  EXPECT_GT(got.abs().max().item<float>(), 1e-3F);
}

TEST(Experts, WithoutTokensHaveGradientsOfZero) {
  OneBlock block({.every = 1, .experts = 5, .top_k = 1, .width = 16, .aux = 0});
  const at::Tensor x = Activations(1);
  block.experts->Run(x).sum().backward();
  int zeros = 0;
  for (const auto& item : block.parameters) {
    if (item.key().find(".experts.") == std::string::npos) continue;
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    zeros += item.value().grad().abs().max().item<float>() == 0;
  }
  EXPECT_EQ(zeros, 4 * 3) << "one token, one expert";
}

TEST(Experts, LogitsThatAreNotNumbersAreTold) {
  OneBlock block({.every = 1, .experts = 5, .top_k = 2, .width = 16});
  {
    const at::NoGradGuard no_gradients;
    at::Tensor gate = block.Parameter("block_sparse_moe.gate.weight");
    gate[3][4] = std::numeric_limits<float>::quiet_NaN();
  }
  try {
    block.experts->Run(Activations(13));
    FAIL() << "nothing was told";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.status().what())
                  .find("13 router logits of model.layers.0.block_sparse_moe"),
              std::string::npos)
        << error.status().Format();
  }
}

// The residual expert of DeepSpeed-MoE (Rajbhandari et al. 2022, section 4.1.1).
TEST(MoeModel, AResidualExpertIsAddedToTheRoutedOnes) {
  GptShape shape = Shape();
  shape.moe.aux = 0;
  const auto loss_of = [](const GptShape& of, const char* zeroed) {
    const auto model = MakeModel(of);
    {
      const at::NoGradGuard no_gradients;
      for (auto& item : model->named_parameters())
        if (zeroed[0] != 0 && item.key().find(zeroed) != std::string::npos) item.value().zero_();
    }
    return model->Loss(Tokens(2, 16), Tokens(2, 16, 1)).item<float>();
  };

  GptShape residual = shape, dense = shape;
  residual.moe.residual = true;
  dense.moe = {};
  EXPECT_EQ(loss_of(residual, ".w2."), loss_of(dense, ""));
  EXPECT_EQ(loss_of(residual, "mlp.down_proj."), loss_of(shape, ""));
  EXPECT_NE(loss_of(residual, ""), loss_of(shape, ""));
}

TEST(MoeModel, RecomputationGivesTheSameBitsAndTheSameLoss) {
  for (const uint32_t every : {1U, 2U}) {
    GptShape shape = Shape(every);
    shape.moe.z = 0.01F;
    shape.moe.residual = every == 2;
    ExpectRecomputationChangesNoBit(MakeModel(shape).get(), MakeModel(shape).get(), Tokens(2, 16),
                                    Tokens(2, 16, 1));
  }
}

TEST(MoeModel, HeldOutLossesHaveNoTermsOfRouters) {
  const auto model = MakeModel(Shape());
  const at::Tensor tokens = Tokens(2, 16), targets = Tokens(2, 16, 1);
  const float trained = model->Loss(tokens, targets).item<float>();
  const at::NoGradGuard no_gradients;
  const float held_out = model->Loss(tokens, targets).item<float>();
  EXPECT_EQ(held_out, model->LossBehind(model->RunBlocks(0, 2, tokens), targets).item<float>());
  EXPECT_GT(trained, held_out + 0.01F);
}

}  // namespace experts_test
}  // namespace tidepool::trainer
