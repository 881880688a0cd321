// Steps whose forward and backward the caller runs: what begins and ends a pass, what is refused
// and what that leaves behind, and what a parameter does that is not there.
#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/trainer/parity/open_model.h"

namespace tidepool::trainer {
namespace open_steps_test {

using ::testing::HasSubstr;

// The model has been trained as plain LibTorch trains it in `steps` steps.
void ExpectAsPlain(const OpenModel& model, int steps, size_t seed = 0) {
  PlainModel plain(seed);
  for (int step = 0; step < steps; ++step) plain.Step();
  EXPECT_TRUE(SameBits(model.values(), plain.values())) << "after " << steps << " steps";
  EXPECT_FALSE(SameBits(plain.values(), PlainModel(seed).values())) << "nothing was learnt";
}

// What LibTorch or one of its callers throws; empty when nothing is thrown.
std::string Thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class OpenStepsTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  CallersBackward on_this_thread_;
};

// --- passes ---

TEST_F(OpenStepsTest, PassesBeginAndEndByThemselves) {
  OpenModel model;
  PlainModel plain;
  for (Version version = 0; version < 4; ++version) {
    EXPECT_EQ(model.steps->version(), version);
    EXPECT_EQ(model.FreeLoss(), plain.FreeLoss()) << "before step " << version;
    at::Tensor loss = model.Loss();
    EXPECT_EQ(loss.item<float>(), plain.FreeLoss());
    EXPECT_EQ(model.FreeLoss(), plain.FreeLoss()) << "between forward and backward";
    loss.backward();
    EXPECT_EQ(model.steps->micro_batch(), 1u);
    EXPECT_FALSE(model.has_gradients()) << "LibTorch's copies are given up";
    ASSERT_TRUE(model.EndStep().ok());
    EXPECT_EQ(model.steps->micro_batch(), 0u);
    plain.Step();
  }
  EXPECT_TRUE(SameBits(model.values(), plain.values()));
}

TEST_F(OpenStepsTest, AFreePassLastsUntilAnotherOneIsSaidToBegin) {
  OpenModel model;
  const float loss = model.FreeLoss();
  EXPECT_FALSE(model.engine->cache().following());
  ASSERT_TRUE(model.steps->BeginForward(/*training=*/false).ok());
  EXPECT_TRUE(model.engine->cache().following()) << "the order is that of the first one";
  EXPECT_EQ(model.FreeLoss(), loss);
  EXPECT_EQ(model.engine->cache().counters().deviations, 0u);

  // Within a training pass it is no pass of its own.
  model.Loss().backward();
  ASSERT_TRUE(model.steps->BeginForward(false).ok());
  EXPECT_EQ(model.FreeLoss(), loss);
  EXPECT_TRUE(model.EndStep().ok());
  ExpectAsPlain(model, 1);
}

TEST_F(OpenStepsTest, TwoModelsOfOneThreadTrainAsEachAlone) {
  auto first = std::make_unique<OpenModel>(Choice{.seed = 1});
  OpenModel second({.blocks = 3, .seed = 2});
  for (int step = 0; step < 2; ++step) {
    const at::Tensor a = first->Loss(), b = second.Loss();
    EXPECT_NE(a.item<float>(), b.item<float>());
    b.backward();
    a.backward();
    EXPECT_TRUE(first->EndStep().ok());
    EXPECT_GT(second.FreeLoss(), 0) << "within its training pass";
    EXPECT_TRUE(second.EndStep().ok());
  }
  // One backward through both.
  (first->Loss() + second.Loss()).backward();
  EXPECT_TRUE(second.EndStep().ok());
  EXPECT_TRUE(first->EndStep().ok());
  ExpectAsPlain(*first, 3, /*seed=*/1);
  ExpectAsPlain(second, 3, /*seed=*/2);

  first.reset();
  EXPECT_TRUE(second.Step().ok());
  ExpectAsPlain(second, 4, /*seed=*/2);
}

// --- micro-batches ---

TEST_F(OpenStepsTest, ABackwardThatIsLeftOutCountsAsZeros) {
  OpenModel both({.micro_batches = 2}), left_out({.micro_batches = 2}), one, half;
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 2; ++micro) (both.Loss() * 0.5).backward();
    (one.Loss()).backward();
    (left_out.Loss() * 0.5).backward();
    (half.Loss() * 0.5).backward();
    for (OpenModel* model : {&both, &left_out, &one, &half}) {
      const Status ended = model->EndStep();
      ASSERT_TRUE(ended.ok()) << ended.Format();
    }
  }
  EXPECT_TRUE(SameBits(both.values(), one.values()));
  EXPECT_TRUE(SameBits(left_out.values(), half.values()));
  EXPECT_FALSE(SameBits(both.values(), half.values()));
  EXPECT_EQ(left_out.submits(), 2 * 2 * kLayers) << "zeros are handed in for what was left out";
}

TEST_F(OpenStepsTest, TwoBackwardsThroughAGraphThatIsKeptAreTwoMicroBatches) {
  OpenModel model({.micro_batches = 2});
  const at::Tensor half = model.Loss() * 0.5;
  half.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(model.steps->micro_batch(), 1u);
  half.backward();
  EXPECT_EQ(model.steps->micro_batch(), 2u);
  ASSERT_TRUE(model.EndStep().ok());
  ExpectAsPlain(model, 1);
}

// As for a penalty on gradients: backward goes through a backward.
TEST_F(OpenStepsTest, TheGradientOfAGradientIsThatOfPlainTraining) {
  const auto loss_of = [](const std::vector<at::Tensor>& weights) {
    const at::Tensor input = torch::ones({2, kWidth}, torch::requires_grad());
    at::Tensor x = input;
    for (const at::Tensor& weight : weights) x = torch::tanh(torch::matmul(x, weight));
    const at::Tensor loss = x.pow(2).mean();
    const auto slope = torch::autograd::grad({loss}, {input}, {}, true, /*create_graph=*/true);
    return loss + slope[0].pow(2).sum();
  };
  OpenModel model({.blocks = 3});
  PlainModel plain;
  for (int step = 0; step < 3; ++step) {
    loss_of(model.weights).backward();
    ASSERT_TRUE(model.EndStep().ok());
    loss_of(plain.weights).backward();
    plain.TakeGradientsOff();
  }
  EXPECT_TRUE(SameBits(model.values(), plain.values()));
}

TEST_F(OpenStepsTest, BackwardOfAVectorIsOneMicroBatch) {
  OpenModel model;
  const auto last = [](const std::vector<at::Tensor>& weights) {
    at::Tensor x = torch::ones({2, kWidth});
    for (const at::Tensor& weight : weights) x = torch::tanh(torch::matmul(x, weight));
    return x;
  };
  const at::Tensor gradient = torch::arange(2 * kWidth).view({2, kWidth}) * 0.001f;
  last(model.weights).backward(gradient);
  EXPECT_EQ(model.steps->micro_batch(), 1u);
  ASSERT_TRUE(model.EndStep().ok());

  PlainModel plain;
  last(plain.weights).backward(gradient);
  plain.TakeGradientsOff();
  EXPECT_TRUE(SameBits(model.values(), plain.values()));
  EXPECT_FALSE(SameBits(model.values(), PlainModel().values()));
}

// A function that goes through a graph of its own in backward, whose first node is the first thing
// that reads a parameter.
struct InnerBackward : torch::autograd::Function<InnerBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor* inner) {  // not an input to differentiate by
    context->saved_data["inner"] = *inner;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    context->saved_data["inner"].toTensor().backward();
    return {gradients[0], at::Tensor()};
  }
};

TEST_F(OpenStepsTest, ABackwardWithinABackwardEndsNoMicroBatch) {
  const auto loss_of = [](const std::vector<at::Tensor>& weights) {
    at::Tensor x = torch::ones({2, kWidth});
    for (size_t i = 0; i < 3; ++i) x = torch::tanh(torch::matmul(x, weights[i]));
    const at::Tensor inner = torch::matmul(x.detach(), weights[3]).pow(2).mean();
    return InnerBackward::apply(x.pow(2).mean(), &inner);
  };
  OpenModel model;
  PlainModel plain;
  for (int step = 0; step < 2; ++step) {
    loss_of(model.weights).backward();
    EXPECT_EQ(model.steps->micro_batch(), 1u);
    ASSERT_TRUE(model.EndStep().ok());
    loss_of(plain.weights).backward();
    plain.TakeGradientsOff();
  }
  EXPECT_TRUE(SameBits(model.values(), plain.values()));
}

TEST_F(OpenStepsTest, GradientsThatAreHandedToTheCallerAreNoMicroBatch) {
  OpenModel model;
  PlainModel plain;
  const auto gradients_of = [](const std::vector<at::Tensor>& weights) {
    return torch::autograd::grad({LossOf(weights)}, {weights[1], weights[3]});
  };
  for (int step = 0; step < 2; ++step) {
    const auto ours = gradients_of(model.weights), theirs = gradients_of(plain.weights);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i]));
    EXPECT_EQ(model.steps->micro_batch(), 0u);
    EXPECT_EQ(model.EndStep().id(), ErrorId::kUsageError) << "there is no gradient to step with";

    model.Loss().backward();
    gradients_of(model.weights);  // behind the last micro-batch too
    EXPECT_TRUE(model.steps->Check().ok()) << model.steps->Check().Format();
    EXPECT_EQ(model.steps->micro_batch(), 1u);
    ASSERT_TRUE(model.EndStep().ok());
    plain.Step();
  }
  EXPECT_TRUE(SameBits(model.values(), plain.values()));
}

// --- what is refused ---

TEST_F(OpenStepsTest, BackwardThroughAForwardFromBeforeTheStepIsRefused) {
  OpenModel model;
  const at::Tensor kept = model.Loss();
  ASSERT_TRUE(model.Step().ok());
  EXPECT_THAT(Thrown([&] { kept.backward(); }), HasSubstr("a forward from before the last step"));
  EXPECT_EQ(model.steps->Check().id(), ErrorId::kUsageError);
  EXPECT_EQ(model.EndStep().id(), ErrorId::kUsageError);
  ExpectAsPlain(model, 1);
}

TEST_F(OpenStepsTest, MoreBackwardsThanTheJobHasAreRefusedWithTheirNumber) {
  OpenModel model({.micro_batches = 2});
  model.Loss().backward();
  model.Loss().backward();
  const std::string thrown = Thrown([&] { model.Loss().backward(); });
  EXPECT_THAT(thrown, HasSubstr("backward was called 3 times before step, and the job has 2"));
  EXPECT_THAT(thrown, HasSubstr("gradient_accumulation_steps=3"));
  EXPECT_EQ(model.EndStep().id(), ErrorId::kUsageError);
  EXPECT_TRUE(SameBits(model.values(), PlainModel().values()));
}

TEST_F(OpenStepsTest, AStepWithoutABackwardIsRefusedAndChangesNothing) {
  OpenModel model;
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(model.EndStep().id(), ErrorId::kUsageError) << "nothing has run";
    model.FreeLoss();
    EXPECT_EQ(model.EndStep().id(), ErrorId::kUsageError) << "no gradient was recorded";
    const at::Tensor loss = model.Loss();
    EXPECT_THAT(model.EndStep().Format(), HasSubstr("step was called without a backward"));
    EXPECT_TRUE(model.steps->Check().ok());
    EXPECT_EQ(model.steps->version(), static_cast<Version>(step));
    loss.backward();
    ASSERT_TRUE(model.EndStep().ok());
  }
  ExpectAsPlain(model, 2);
}

// --- exceptions ---

TEST_F(OpenStepsTest, AnExceptionInForwardLeavesTheNextForwardWorking) {
  OpenModel model;
  for (int step = 0; step < 3; ++step) {
    const auto broken = [&] {
      const at::Tensor x = torch::matmul(torch::ones({2, kWidth}), model.weights[step]);
      if (step != 1) throw std::runtime_error("between operators");
      torch::matmul(torch::ones({2, kWidth + 1}), model.weights[2]);  // within one
    };
    EXPECT_THAT(Thrown(broken),
                HasSubstr(step != 1 ? "between operators" : "cannot be multiplied"));
    EXPECT_TRUE(model.steps->Check().ok());
    ASSERT_TRUE(model.Step().ok());
  }
  ExpectAsPlain(model, 3);
}

// An activation whose gradient makes backward throw, behind `layers` layers.
at::Tensor LossThatThrows(const OpenModel& model, size_t layers) {
  at::Tensor x = torch::ones({2, kWidth});
  for (size_t i = 0; i < kLayers; ++i) {
    x = torch::tanh(torch::matmul(x, model.weights[i]));
    if (i + 1 != layers) continue;
    x.register_hook([](const at::Tensor&) { throw std::runtime_error("a hook of the caller"); });
  }
  return x.pow(2).mean();
}

TEST_F(OpenStepsTest, AnExceptionInBackwardIsReportedByAllThatFollows) {
  OpenModel model;
  ASSERT_TRUE(model.Step().ok());
  EXPECT_THAT(Thrown([&] { LossThatThrows(model, /*layers=*/2).backward(); }),
              HasSubstr("a hook of the caller"));
  EXPECT_TRUE(model.steps->abandoned());
  const Status ended = model.EndStep();
  EXPECT_EQ(ended.id(), ErrorId::kStepAbandoned) << ended.Format();
  EXPECT_TRUE(model.steps->abandoned());
  model.FreeLoss();
  const Status found = model.steps->Check();
  EXPECT_EQ(found.id(), ErrorId::kStepAbandoned) << found.Format();
  EXPECT_THAT(found.Format(), HasSubstr("resume=\"auto\""));
  EXPECT_THAT(Thrown([&] { model.Loss().backward(); }), HasSubstr("ended in an exception"));
  EXPECT_EQ(model.EndStep().id(), ErrorId::kStepAbandoned);
  ExpectAsPlain(model, 1);
}

// No parameter was read again, and no gradient has come: there is nothing to drop.
TEST_F(OpenStepsTest, AnExceptionAtTheVeryBeginningOfBackwardCostsNothing) {
  OpenModel model;
  EXPECT_THAT(Thrown([&] { LossThatThrows(model, kLayers).backward(); }),
              HasSubstr("a hook of the caller"));
  EXPECT_FALSE(model.steps->abandoned());
  ASSERT_TRUE(model.Step().ok());
  ExpectAsPlain(model, 1);
}

TEST_F(OpenStepsTest, ALostServerIsReportedByAllThatFollows) {
  OpenModel model;
  ASSERT_TRUE(model.Step().ok());
  model.service->FailFrom(model.service->requests() + 2);
  EXPECT_THAT(Thrown([&] { model.Loss().backward(); }), HasSubstr("the server is gone"));
  EXPECT_EQ(model.steps->Check().id(), ErrorId::kServerGone);
  EXPECT_EQ(model.steps->BeginForward(/*training=*/false).id(), ErrorId::kServerGone);
  EXPECT_EQ(model.EndStep().id(), ErrorId::kServerGone);
}

TEST_F(OpenStepsTest, AnEndOfAStepThatFailsIsReportedByAllThatFollows) {
  OpenModel model;
  model.service->fail_ends = true;
  EXPECT_EQ(model.Step().id(), ErrorId::kServerGone);
  model.service->fail_ends = false;
  model.FreeLoss();
  EXPECT_EQ(model.steps->Check().id(), ErrorId::kServerGone);
  EXPECT_EQ(model.EndStep().id(), ErrorId::kServerGone);
  EXPECT_EQ(model.steps->version(), 0u);
}

// --- parameters ---

TEST_F(OpenStepsTest, WhatIsHeldIsThereUntilItIsLetGo) {
  OpenModel model;
  const std::vector<at::Tensor> both = {model.weights[0], model.weights[1]};
  const torch::NoGradGuard no_grad;
  Result<uint64_t> first = model.steps->Hold({both[0].t()});
  ASSERT_TRUE(first.ok()) << first.status().Format();
  EXPECT_NE(first.value(), 0u);
  EXPECT_EQ(*both[0].const_data_ptr<float>(), InitialValue(0, 0, 0));

  Result<uint64_t> again = model.steps->Hold({both[0]});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value(), 0u) << "it is held already";
  Result<uint64_t> second = model.steps->Hold(both);
  ASSERT_TRUE(second.ok());
  EXPECT_THAT(model.steps->LetGo(first.value()).what(), HasSubstr("not held last"));
  EXPECT_TRUE(model.steps->LetGo(second.value()).ok());
  EXPECT_TRUE(model.steps->LetGo(first.value()).ok());
  EXPECT_TRUE(model.steps->LetGo(first.value()).ok()) << "nothing is held any more";
}

TEST_F(OpenStepsTest, AStepDoesNotEndWhileParametersAreHeld) {
  OpenModel model;
  model.Loss().backward();
  Result<uint64_t> held = model.steps->Hold({model.weights[0]});
  ASSERT_TRUE(held.ok());
  EXPECT_THAT(model.EndStep().what(), HasSubstr("while parameters are held"));
  ASSERT_TRUE(model.steps->LetGo(held.value()).ok());
  EXPECT_TRUE(model.EndStep().ok());
  ExpectAsPlain(model, 1);
}

TEST_F(OpenStepsTest, MoreThanTheRcacheHasRoomForIsNotHeld) {
  OpenModel model;
  EXPECT_THAT(model.steps->Hold(model.weights).status().what(), HasSubstr("read at once"));
  model.Loss().backward();
  EXPECT_TRUE(model.EndStep().ok());
  ExpectAsPlain(model, 1);
}

TEST_F(OpenStepsTest, AWriteToAParameterThrowsThereAndChangesNothing) {
  OpenModel model;
  at::Tensor& weight = model.weights[1];
  const std::pair<const char*, std::function<void()>> writes[] = {
      {"add_", [&] { weight.add_(1); }},
      {"zero_", [&] { weight.zero_(); }},
      {"copy_",
       [&] {
         weight.copy_(torch::ones({kWidth, kWidth}));
       }},
      {"a view", [&] { weight.select(0, 3).fill_(2); }},
      {"out=", [&] { torch::add_out(weight, model.weights[0], model.weights[2]); }},
      {"itself", [&] { weight.mul_(weight); }}};
  for (Version version = 0; version < 3; ++version) {
    for (const auto& [name, write] : writes) {
      const torch::NoGradGuard no_grad;
      if (version == 1) weight.sum();  // it is in the rCache
      const uint64_t requests = model.service->requests();
      EXPECT_THAT(Thrown(write), HasSubstr("a write to their copy here would be lost")) << name;
      EXPECT_EQ(model.service->requests(), requests) << name;
      EXPECT_TRUE(model.steps->Check().ok()) << name;
    }
    const torch::NoGradGuard no_grad;
    const auto kept = model.values();
    EXPECT_EQ(std::memcmp(weight.clone().const_data_ptr<float>(), kept[1].data(),
                          kept[1].size() * sizeof(float)),
              0);
    const torch::AutoGradMode with_gradients(true);
    ASSERT_TRUE(model.Step().ok());
  }
  ExpectAsPlain(model, 3);
}

// Whether LibTorch hands out the address in which the values lie.
std::string AskForMemory(const at::Tensor& tensor) {
  return Thrown([&] { tensor.const_data_ptr<float>(); });
}

TEST_F(OpenStepsTest, AParameterThatIsNotThereSaysWhereItIs) {
  OpenModel model;
  for (int step = 0; step < 2; ++step) {
    EXPECT_GT(model.FreeLoss(), 0);  // two of the four chunks are in the rCache
    const auto away = std::count_if(
        model.weights.begin(), model.weights.end(),
        [](const at::Tensor& weight) { return AskForMemory(weight).find("memory server") < 1000; });
    EXPECT_EQ(away, 2);
    model.Loss().backward();
    ASSERT_TRUE(model.EndStep().ok());
    for (const at::Tensor& weight : model.weights) {
      EXPECT_THAT(AskForMemory(weight), HasSubstr("memory server"));
      EXPECT_THAT(Thrown([&] { weight.accessor<float, 2>(); }), HasSubstr("memory server"));
      EXPECT_THAT(Thrown([&] { (void)weight.mutable_data_ptr(); }), HasSubstr("memory server"));
      EXPECT_THAT(AskForMemory(weight[0]), HasSubstr("memory server"));
    }
    // An operator brings it.
    for (size_t i = 0; i < kLayers; ++i)
      EXPECT_EQ(model.weights[i][1][2].item<float>(), model.values()[i][kWidth + 2]);
  }
}

TEST_F(OpenStepsTest, OtherViewsOfAParameterBringNothing) {
  OpenModel model;
  const at::Tensor& weight = model.weights[2];
  const uint64_t requests = model.service->requests();
  EXPECT_EQ(weight.chunk(2).size(), 2u);
  EXPECT_EQ(weight.split(8).size(), 4u);
  EXPECT_EQ(weight.narrow(0, 1, 2).size(0), 2);
  EXPECT_EQ(weight.unfold(0, 4, 4).dim(), 3);
  EXPECT_TRUE(weight.contiguous().is_same(weight));
  EXPECT_EQ(weight.t().reshape({-1, kWidth}).size(0), kWidth);
  EXPECT_EQ(weight.unbind(0).size(), static_cast<size_t>(kWidth));
  EXPECT_FALSE(weight.detach().requires_grad());
  EXPECT_EQ(model.service->requests(), requests);

  // They are read where an operator reads them.
  const torch::NoGradGuard no_grad;
  PlainModel plain;
  EXPECT_TRUE(torch::equal(weight.chunk(2)[1] * 2, plain.weights[2].chunk(2)[1] * 2));
  EXPECT_TRUE(torch::equal(weight.unfold(0, 4, 4).sum(), plain.weights[2].unfold(0, 4, 4).sum()));
  EXPECT_EQ(model.service->requests(), requests + 1);
}

TEST_F(OpenStepsTest, AParameterThatGotOtherMemoryIsNamedWhenThePassBegins) {
  OpenModel model;
  ASSERT_TRUE(model.Step().ok());
  model.weights[1].set_data(torch::ones({kWidth, kWidth}));
  EXPECT_TRUE(model.steps->Check().ok());
  EXPECT_THAT(Thrown([&] { model.Loss().backward(); }),
              HasSubstr("the parameter w1 has got other"));
  const Status found = model.steps->Check();
  EXPECT_EQ(found.id(), ErrorId::kUsageError);
  EXPECT_THAT(found.Format(), HasSubstr("the parameter w1 has got other memory than the job's"));
  EXPECT_EQ(model.EndStep().id(), ErrorId::kUsageError);
}

TEST_F(OpenStepsTest, AnRcacheThatIsTooSmallForALookIsReportedWhenAsked) {
  OpenModel model({.blocks = 1});
  const torch::NoGradGuard no_grad;
  torch::matmul(model.weights[0], model.weights[1]);
  const Status found = model.steps->Check();
  EXPECT_EQ(found.id(), ErrorId::kRcacheTooSmall) << found.Format();
  EXPECT_THAT(found.Format(), HasSubstr(std::to_string(2 * kWidth * kWidth * sizeof(float))));
  EXPECT_EQ(model.steps->Check().id(), ErrorId::kRcacheTooSmall);
}

TEST_F(OpenStepsTest, ATrainingPassThatIsTooSmallNamesTheSizeOfTheWholeStep) {
  OpenModel model({.blocks = 1});
  const auto loss = [&] {
    return torch::matmul(torch::matmul(model.weights[0], model.weights[1]), model.weights[2]).sum();
  };
  const std::string thrown = Thrown([&] { loss().backward(); });
  EXPECT_THAT(thrown, HasSubstr("blocks of"));
  EXPECT_EQ(model.steps->Check().id(), ErrorId::kRcacheTooSmall);
  EXPECT_EQ(model.EndStep().id(), ErrorId::kRcacheTooSmall);
  EXPECT_FALSE(model.has_gradients());
}

TEST_F(OpenStepsTest, ParametersThrowWhenTheirEngineHasEnded) {
  OpenModel model;
  EXPECT_GT(model.FreeLoss(), 0);
  model.engine.reset();
  for (const at::Tensor& weight : model.weights) {
    EXPECT_THAT(AskForMemory(weight), HasSubstr("has been closed or left"));
    const torch::NoGradGuard no_grad;
    EXPECT_THAT(Thrown([&] { weight.sum(); }), HasSubstr("has been closed or left"));
    EXPECT_THAT(Thrown([&] { weight[0][0].item<float>(); }), HasSubstr("has been closed or left"));
    EXPECT_EQ(weight.size(0), kWidth);
  }
}

}  // namespace open_steps_test
}  // namespace tidepool::trainer
