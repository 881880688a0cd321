#include "trainer/model/gpt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "trainer/model/checkpoint.h"
#include "trainer/model/generate.h"
#include "trainer/model/tiles/tile_places.h"

namespace tidepool::trainer {
namespace gpt_test {

const GptShape kSmall{"small", 61, 16, 3, 2, 32};

// Small models gain nothing from threads, and lose much where the machine is busy.
const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

std::shared_ptr<Gpt> MakeModel(const GptShape& shape, at::ScalarType dtype = at::kFloat) {
  auto model = std::make_shared<Gpt>(shape, at::TensorOptions().dtype(dtype));
  InitGpt(model.get(), 11);
  return model;
}

// Fixed tokens with some structure.
at::Tensor Tokens(int64_t batch, int64_t tokens, int64_t shift = 0) {
  return (at::arange(shift, shift + batch * tokens) * 7 % 61).view({batch, tokens});
}

// Tiles of linear layers change no more than the order of sums.
TEST(LinearTiles, GiveTheLossAndTheGradientsOfWholeLayers) {
  GptShape llama = kSmall;
  llama.form = ModelForm::kLlama;
  llama.llama = {.kv_heads = 1, .head_size = 16, .mlp = 80};
  for (const GptShape& shape : {kSmall, llama}) {
    SCOPED_TRACE(shape.form == ModelForm::kLlama ? "Llama's form" : "GPT-2's form");
    GptShape tiled = shape;
    tiled.tile_elements = 700;
    auto whole = MakeModel(shape), cut = MakeModel(tiled);
    cut->SetCheckpointing(true);
    ASSERT_GT(cut->named_parameters().size(), whole->named_parameters().size() + 20);

    const at::Tensor tokens = Tokens(2, 16), targets = Tokens(2, 16, 1);
    const at::Tensor loss = whole->Loss(tokens, targets), of_tiles = cut->Loss(tokens, targets);
    EXPECT_NEAR(of_tiles.item<double>(), loss.item<double>(), 2e-6);
    loss.backward();
    of_tiles.backward();

    std::map<std::string, std::vector<at::Tensor>> gradients;
    for (const ParameterNote& note : GptParameters(tiled)) {
      const at::Tensor& gradient = cut->named_parameters()[note.name].grad();
      gradients[PlaceOfTile(note.name, tiled).whole].push_back(gradient);
    }
    for (const auto& item : whole->named_parameters())
      EXPECT_TRUE(at::allclose(at::cat(gradients[item.key()]), item.value().grad(), 1e-5, 2e-6))
          << item.key();
  }
}

TEST(Gpt, RegistersTheParametersOfTheTable) {
  const Gpt model(kSmall, at::TensorOptions().device(at::kMeta));
  const auto notes = GptParameters(kSmall);
  const auto parameters = model.named_parameters();
  ASSERT_EQ(parameters.size(), notes.size());
  for (size_t i = 0; i < notes.size(); ++i) {
    EXPECT_EQ(parameters[i].key(), notes[i].name);
    EXPECT_EQ(parameters[i].value().sizes().vec(),
              std::vector<int64_t>(notes[i].dims.begin(), notes[i].dims.end()));
    EXPECT_TRUE(parameters[i].value().is_meta() && parameters[i].value().requires_grad());
  }
}

const LoraShape kAdapters{
    .rank = 3, .alpha = 6, .targets = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}};

TEST(Adapters, AloneAskForGradients) {
  const LoraShape two{.rank = 3, .alpha = 6, .targets = {"attn.c_proj", "mlp.c_fc"}};
  const Gpt model(kSmall, at::TensorOptions().device(at::kMeta), two);
  const auto parameters = model.named_parameters();
  ASSERT_EQ(parameters.size(), GptParameters(kSmall).size() + 3 * 2 * 2);
  for (const auto& item : parameters) {
    EXPECT_EQ(item.value().requires_grad(), item.key().find(".lora_") != std::string::npos)
        << item.key();
  }
  EXPECT_EQ(parameters["h.2.mlp.c_fc.lora_A.weight"].sizes().vec(), (std::vector<int64_t>{3, 32}));
  EXPECT_EQ(parameters["h.2.mlp.c_fc.lora_B.weight"].sizes().vec(), (std::vector<int64_t>{128, 3}));
  EXPECT_FALSE(parameters.contains("h.2.mlp.c_proj.lora_A.weight"));
}

// With B = 0 the model is its base, bit for bit. With other values it is the model with W + alpha /
// rank * B A in place of W.
TEST(Adapters, AddTheirProductToTheLayersWeight) {
  auto base = MakeModel(kSmall),
       adapted = std::make_shared<Gpt>(kSmall, at::TensorOptions().dtype(at::kFloat), kAdapters);
  InitGpt(adapted.get(), 11);
  const at::Tensor tokens = Tokens(2, 16);
  EXPECT_TRUE(adapted->Forward(tokens).equal(base->Forward(tokens)));
  const at::NoGradGuard no_gradients;
  auto parameters = adapted->named_parameters(), merged = base->named_parameters();
  for (auto& item : parameters) {
    const std::string& name = item.key();
    if (name.find("lora_B") == std::string::npos) continue;
    item.value().copy_(
        at::arange(item.value().numel()).remainder(7).sub(3).mul(0.01).view_as(item.value()));
    const std::string layer = name.substr(0, name.size() - std::string("lora_B.weight").size());
    merged[layer + "weight"].add_(item.value().matmul(parameters[layer + "lora_A.weight"]),
                                  6.0 / 3);
  }
  const at::Tensor difference = (adapted->Forward(tokens) - base->Forward(tokens)).abs().max();
  EXPECT_LT(difference.item<float>(), 1e-4F);
  EXPECT_GT(
      (adapted->Forward(tokens) - MakeModel(kSmall)->Forward(tokens)).abs().max().item<float>(),
      1e-2F)
      << "nothing was added";
}

TEST(Gpt, TakesTheTensorsOfAMaker) {
  std::vector<std::string> asked;
  const Gpt model(kSmall, [&](const ParameterNote& note) {
    asked.push_back(note.name);
    return at::full(std::vector<int64_t>(note.dims.begin(), note.dims.end()),
                    static_cast<double>(asked.size()));
  });
  const auto parameters = model.named_parameters();
  ASSERT_EQ(asked.size(), parameters.size());
  for (size_t i = 0; i < asked.size(); ++i)
    EXPECT_EQ(parameters[asked[i]].max().item<float>(), static_cast<float>(i + 1));
}

TEST(Gpt, StartsNearUniformAndIsCausal) {
  auto model = MakeModel(kSmall);
  const at::Tensor tokens = Tokens(2, 16);
  EXPECT_NEAR(model->Loss(tokens, Tokens(2, 16, 1)).item<float>(), std::log(61.0), 0.1);
  at::Tensor changed = tokens.clone();
  changed.index_put_({0, 10}, 3);
  const at::Tensor difference = (model->Forward(tokens) - model->Forward(changed)).abs().sum(-1);
  EXPECT_EQ(difference[0].slice(0, 0, 10).max().item<float>(), 0.F);
  EXPECT_GT(difference[0].slice(0, 10).max().item<float>(), 0.F);
  EXPECT_EQ(difference[1].max().item<float>(), 0.F);
}

TEST(Gpt, AttentionEqualsTheTextbookForm) {
  // Fused attention against softmax(QK^T / sqrt(d)) V, through the whole model with one layer.
  const GptShape shape{"one", 61, 8, 1, 2, 16};
  auto model = MakeModel(shape);
  const auto p = model->named_parameters();
  const at::Tensor tokens = Tokens(1, 8);
  const auto affine = [&](const at::Tensor& x, const std::string& name) {
    return x.matmul(p[name + ".weight"].t()) + p[name + ".bias"];
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * p[name + ".weight"] +
           p[name + ".bias"];
  };
  at::Tensor x = p["wte.weight"].index_select(0, tokens[0]) + p["wpe.weight"].slice(0, 0, 8);
  const auto qkv = affine(norm(x, "h.0.ln_1"), "h.0.attn.c_attn").split(16, 1);
  std::vector<at::Tensor> mixed;
  for (int64_t head = 0; head < 2; ++head) {
    const auto of = [&](const at::Tensor& t) { return t.slice(1, head * 8, head * 8 + 8); };
    at::Tensor scores = of(qkv[0]).matmul(of(qkv[1]).t()) / std::sqrt(8.0);
    scores = scores.masked_fill(at::ones({8, 8}, at::kBool).triu(1), -INFINITY);
    mixed.push_back(scores.softmax(-1).matmul(of(qkv[2])));
  }
  x = x + affine(at::cat(mixed, 1), "h.0.attn.c_proj");
  const at::Tensor u = affine(norm(x, "h.0.ln_2"), "h.0.mlp.c_fc");
  x = x + affine(0.5 * u * (1 + at::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u.pow(3)))),
                 "h.0.mlp.c_proj");
  const at::Tensor logits = norm(x, "ln_f").matmul(p["wte.weight"].t());
  EXPECT_LT((logits - model->Forward(tokens)[0]).abs().max().item<float>(), 1e-5F);
}

TEST(Gpt, LearnsASmallText) {
  auto model = MakeModel(kSmall);
  torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const at::Tensor tokens = Tokens(4, 16), targets = Tokens(4, 16, 1);
  for (int step = 0; step < 60; ++step) {
    adam.zero_grad();
    model->Loss(tokens, targets).backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    adam.step();
  }
  EXPECT_LT(model->Loss(tokens, targets).item<float>(), 0.5F);
  // It has learnt "the next token is 7 more, modulo 61".
  const auto answer =
      Generate(model.get(), {0, 7, 14, 21}, {.tokens = 6, .temperature = 0, .top_k = 0, .seed = 1});
  ASSERT_TRUE(answer.ok()) << answer.status().Format();
  EXPECT_EQ(answer.value(), (std::vector<int64_t>{28, 35, 42, 49, 56, 2}));
}

class CheckpointingOf : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, CheckpointingOf, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& param) { return std::string(c10::toString(param.param)); });

TEST_P(CheckpointingOf, GivesTheSameBitsWhereverInputsWait) {
  for (const auto& store :
       {std::shared_ptr<ActivationStore>(), std::make_shared<ActivationStore>()}) {
    auto plain = MakeModel(kSmall, GetParam()), saving = MakeModel(kSmall, GetParam());
    saving->SetCheckpointing(true, store);
    for (int round = 0; round < 2; ++round) {  // the second round adds to the first one's gradients
      const at::Tensor tokens = Tokens(3, 16, round), targets = Tokens(3, 16, round + 1);
      const at::Tensor a = plain->Loss(tokens, targets), b = saving->Loss(tokens, targets);
      ASSERT_TRUE(a.equal(b));
      a.backward();
      b.backward();
    }
    const auto expected = plain->named_parameters(), got = saving->named_parameters();
    for (const auto& item : expected) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_GT(item.value().grad().abs().max().item<float>(), 0.F) << item.key();
      EXPECT_TRUE(item.value().grad().equal(got[item.key()].grad())) << item.key();
    }
  }
}

TEST(Checkpointing, RunsEachPieceTwiceAndKeepsNoInnerTensor) {
  int runs = 0;
  std::weak_ptr<int> inner;
  const auto piece = [&](const at::Tensor& x) {
    ++runs;
    auto token = std::make_shared<int>(runs);
    inner = token;
    // A tensor whose release shows when the activations of this run are let go.
    at::Tensor factor = at::from_blob(
                            token.get(), {1}, [token](void*) {}, at::kInt)
                            .to(at::kFloat);
    at::Tensor kept = at::from_blob(
        token.get(), {1}, [token](void*) {}, at::kInt);
    return x * kept * factor.numel();
  };
  at::Tensor x = at::full({1}, 3.F).requires_grad_(true);
  at::Tensor y = Checkpoint(piece, x.sin());
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(inner.expired());
  y.backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(inner.expired());
  EXPECT_FLOAT_EQ(x.grad().item<float>(), 2 * std::cos(3.F));  // the second run multiplies by 2
}

// A chain of four pieces, as blocks are.
TEST(Checkpointing, InputsWaitInAStoreAndComeBackAhead) {
  constexpr int kPieces = 4;
  auto store = std::make_shared<ActivationStore>();
  size_t places = 0;
  std::vector<size_t> there;  // inputs on the device whenever a piece runs in backward
  const auto run = [&](const std::shared_ptr<ActivationStore>& where, const at::Tensor& x) {
    at::Tensor y = x.sin();
    for (int i = 0; i < kPieces; ++i) {
      y = Checkpoint(
          [&](const at::Tensor& input) {
            if (at::GradMode::is_enabled()) there.push_back(store->on_device());
            places = std::max(places, store->places());
            return (input * 3).cos();
          },
          y, where);
    }
    return y.sum();
  };
  at::Tensor kept = at::linspace(-1, 1, 64).requires_grad_(true),
             stored = kept.detach().clone().requires_grad_(true);
  run(nullptr, kept).backward();
  there.clear();
  const at::Tensor loss = run(store, stored);
  EXPECT_EQ(store->size(), 4U);
  EXPECT_EQ(store->on_device(), 1U) << "the last one is needed at once, the others are away";
  loss.backward();
  EXPECT_TRUE(kept.grad().equal(stored.grad()));
  EXPECT_EQ(places, 2U) << "an input comes back to where the one before the last was";
  EXPECT_EQ(store->places(), 0U) << "nothing stays behind backward";
  EXPECT_EQ(there, (std::vector<size_t>{1, 1, 1, 0}))
      << "beside the one that is used, the next one";
  EXPECT_EQ(store->ahead(), 4U);
  EXPECT_EQ(store->size(), 0U);
  EXPECT_THROW(loss.backward(), c10::Error);
  run(store, stored);  // given up before its backward
  EXPECT_EQ(store->size(), 0U);
}

TEST(Checkpointing, IsLeftOutWhereBackwardWouldNotReach) {
  int runs = 0;
  at::Tensor weight = at::full({1}, 2.F).requires_grad_(true);
  const auto piece = [&](const at::Tensor& x) {
    ++runs;
    return x * weight;
  };
  Checkpoint(piece, at::full({1}, 5.F)).backward();
  EXPECT_EQ(weight.grad().item<float>(), 5.F);
  EXPECT_EQ(runs, 1);
  const at::NoGradGuard no_gradients;
  EXPECT_FALSE(Checkpoint(piece, weight).requires_grad());
}

TEST(Checkpointing, PassesAnErrorOfTheSecondRun) {
  int runs = 0;
  at::Tensor x = at::ones({1}).requires_grad_(true);
  at::Tensor y = Checkpoint(
      [&](const at::Tensor& input) {
        TORCH_CHECK(++runs == 1, "the second run fails");
        return input * 2;
      },
      x);
  EXPECT_THROW(y.backward(), c10::Error);
}

TEST(Generate, IsDeterministicAndHeedsItsOptions) {
  auto model = MakeModel(kSmall);
  const std::vector<int64_t> prompt{1, 2, 3};
  GenerateOptions options{.tokens = 40, .temperature = 1.F, .top_k = 0, .seed = 5};
  const auto first = Generate(model.get(), prompt, options).value();
  EXPECT_EQ(first.size(), 40U);  // beyond the context of 16
  EXPECT_EQ(first, Generate(model.get(), prompt, options).value());
  options.seed = 6;
  EXPECT_NE(first, Generate(model.get(), prompt, options).value());
  options.top_k = 1;
  const auto likeliest = Generate(model.get(), prompt, options).value();
  options.temperature = 0;
  EXPECT_EQ(likeliest, Generate(model.get(), prompt, options).value());
}

TEST(Gpt, ItsCacheOfKeysAndValuesChangesNothingButRounding) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    auto model = MakeModel(kSmall, dtype);
    const at::Tensor tokens = Tokens(1, 16);
    KvCache cache;
    for (int64_t seen = 5; seen <= 16; ++seen) {
      const at::Tensor fresh = tokens.slice(1, cache.tokens, seen);
      const at::Tensor got = model->NextLogits(fresh, &cache);
      const at::Tensor want = model->NextLogits(tokens.slice(1, 0, seen));
      EXPECT_LT((got - want).abs().max().item<float>(), dtype == at::kFloat ? 1e-5F : 3e-2F);
      EXPECT_GT(want.abs().max().item<float>(), 0.1F);
      EXPECT_EQ(cache.tokens, seen);
    }
    EXPECT_THROW(model->NextLogits(tokens.slice(1, 0, 1), &cache), c10::Error);  // it is full
  }
}

// A temperature at which all tokens are alike; far more of them than are ranked at once.
TEST(Generate, ChoosesAmongAllTokensOrAmongTheLikeliestAlone) {
  GptShape wide = kSmall;
  wide.vocab = 300;
  auto model = MakeModel(wide);
  std::set<int64_t> of_all, of_five, likeliest;
  GenerateOptions options{.tokens = 1, .temperature = 1000.F};

  for (options.seed = 1; options.seed <= 1000; ++options.seed) {
    options.top_k = 0;
    of_all.insert(Generate(model.get(), {1, 2}, options).value().front());
    options.top_k = 5;
    of_five.insert(Generate(model.get(), {1, 2}, options).value().front());
  }
  for (uint32_t kept = 1; kept <= 5; ++kept) {
    options.top_k = kept;
    for (options.seed = 1; options.seed <= 60; ++options.seed)
      likeliest.insert(Generate(model.get(), {1, 2}, options).value().front());
    EXPECT_EQ(likeliest.size(), kept) << "each more adds one";
  }
  EXPECT_GT(of_all.size(), 250U) << "of 289 to be expected";
  EXPECT_EQ(of_five, likeliest);
}

TEST(Generate, TellsEachTokenAndStopsWhereNoMoreAreWanted) {
  auto model = MakeModel(kSmall);
  const GenerateOptions options{.tokens = 30, .temperature = 1.F, .top_k = 0, .seed = 5};
  std::vector<int64_t> told;
  const auto all = Generate(model.get(), {1, 2}, options, [&](int64_t token) {
                     told.push_back(token);
                     return true;
                   }).value();
  EXPECT_EQ(told, all);
  const auto some = Generate(model.get(), {1, 2}, options, [](int64_t) { return false; }).value();
  EXPECT_EQ(some, std::vector<int64_t>(all.begin(), all.begin() + 1));
}

// Beyond the context each choice is that of the latest half to whole of it.
TEST(Generate, GoesOnWithTheLatestPartOfATextThatOutgrowsTheContext) {
  auto model = MakeModel(kSmall);
  const auto got =
      Generate(model.get(), {1, 2, 3}, {.tokens = 40, .temperature = 0, .top_k = 0, .seed = 1})
          .value();
  std::vector<int64_t> text{1, 2, 3};
  int64_t seen = 0;
  for (const int64_t token : got) {
    seen = seen == 0 ? 3 : seen == kSmall.context ? kSmall.context / 2 : seen + 1;
    const at::Tensor tokens = at::from_blob(text.data() + (text.size() - static_cast<size_t>(seen)),
                                            {1, seen}, at::kLong);
    EXPECT_EQ(token, model->NextLogits(tokens).argmax(-1).item<int64_t>());
    text.push_back(token);
  }
}

TEST(Generate, RefusesBadRequests) {
  auto model = MakeModel(kSmall);
  EXPECT_EQ(Generate(model.get(), {}, {}).status().id(), ErrorId::kUsageError);
  EXPECT_EQ(Generate(model.get(), {61}, {}).status().id(), ErrorId::kUsageError);
  EXPECT_EQ(Generate(model.get(), {1}, {.tokens = 1, .temperature = -1.F, .top_k = 0, .seed = 1})
                .status()
                .id(),
            ErrorId::kUsageError);
  const at::NoGradGuard no_gradients;
  model->parameters()[0].fill_(NAN);
  EXPECT_EQ(Generate(model.get(), {1}, {}).status().id(), ErrorId::kNonFinite);
}

TEST(Threads, CanBeSet) {
  ASSERT_TRUE(kOneThread);
  EXPECT_EQ(at::get_num_threads(), 1);
  auto model = MakeModel(kSmall);
  const at::Tensor one = model->Forward(Tokens(2, 16));
  at::set_num_threads(2);
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_LT((model->Forward(Tokens(2, 16)) - one).abs().max().item<float>(), 1e-5F);
  at::set_num_threads(1);
}

}  // namespace gpt_test
}  // namespace tidepool::trainer
