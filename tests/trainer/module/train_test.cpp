// libtidepool_train as a program of a user sees it: its header alone, and a memserver of its own.
#include "trainer/module/tidepool/train.h"

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

namespace tidepool::train_test {
namespace {

using ::testing::HasSubstr;

// Two layers with a tensor under two names, a frozen scale and a table of whole numbers.
struct Net : torch::nn::Module {
  Net() {
    first = register_parameter("first", at::randn({24, 16}) * 0.2);
    middle = register_parameter("middle", at::randn({24, 24}) * 0.2);
    last = register_parameter("last", first);
    bias = register_parameter("bias", at::zeros({16}));
    scale = register_parameter("scale", at::rand({16}) + 0.5, /*requires_grad=*/false);
    register_parameter("table", at::arange(4), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto times = [](const at::Tensor& left, const at::Tensor& right) {
      return at::matmul(left.to(right.scalar_type()), right);
    };
    return times(at::tanh(times(at::tanh(times(x * scale, first.t())), middle)), last) + bias;
  }
  // The loss of batch `index`, which is always the same one.
  at::Tensor Loss(int64_t index) {
    at::Tensor x = at::sin(at::arange(8 * 16, at::kFloat).reshape({8, 16}) * (index + 1));
    x = x.to(first.scalar_type());
    return at::mse_loss(forward(x).to(x.scalar_type()), x);
  }
  at::Tensor first, middle, last, bias, scale;
};

Net Made(int64_t seed = 1) {
  at::manual_seed(seed);
  return {};
}

TrainOptions Private() {
  TrainOptions options;
  options.standalone = options.quiet = true;
  options.rcache = "100%";
  return options;
}

// The error that `call` throws.
template <typename Call>
Error ErrorOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error("", {});
}

void TakeSteps(Net* net, Training* training, int64_t count) {
  for (int64_t step = 0; step < count; ++step) {
    net->Loss(step).backward();
    training->Step(1e-2);
  }
}

TEST(Train, ComesToTheWeightsOfTorchsAdamW) {
  Net plain = Made(), net = Made();
  torch::optim::AdamW adamw({plain.first, plain.middle, plain.bias},
                            torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  TrainOptions options = Private();
  options.weight_decay = 0.1;
  options.micro_batches = 2;
  Training training = Train(net, options);
  EXPECT_FALSE(training.resumed());
  EXPECT_EQ(training.world(), 1u);

  for (int64_t step = 0; step < 5; ++step) {
    adamw.zero_grad();
    for (int64_t micro = 0; micro < 2; ++micro) {
      plain.Loss(2 * step + micro).backward();
      net.Loss(2 * step + micro).backward();
    }
    adamw.step();
    const StepResult sealed = training.Step(1e-2);
    EXPECT_GT(sealed.grad_norm, 0);
    EXPECT_EQ(sealed.sealed_steps, static_cast<uint64_t>(step + 1));

    const at::NoGradGuard no_grad;
    training.BeginForward(false);
    EXPECT_NEAR(net.Loss(100).item<double>(), plain.Loss(100).item<double>(), 1e-4);
  }
  for (const char* name : {"first", "middle", "last", "bias", "scale"})
    EXPECT_TRUE(at::allclose(training.Weights(name), plain.named_parameters()[name], 1e-3, 1e-5))
        << name;
  training.Close();
}

// Each third step reaches one parameter alone, and the groups' numbers change with the steps.
TEST(Train, TakesNumbersOfEachGroupAndLeavesAloneWhatIsNotReached) {
  Net plain = Made(), net = Made();
  const auto own = [] { return std::make_unique<torch::optim::AdamWOptions>(1e-2); };
  torch::optim::AdamW adamw({torch::optim::OptimizerParamGroup({plain.first, plain.middle}, own()),
                             torch::optim::OptimizerParamGroup({plain.bias}, own())});
  TrainOptions options = Private();
  options.groups = {{.names = {"bias"}}};
  Training training = Train(net, options);

  for (int64_t step = 0; step < 9; ++step) {
    std::vector<GroupStep> groups(2);
    for (size_t group = 0; group < 2; ++group) {
      GroupStep& numbers = groups[group];
      numbers.learning_rate = 1e-2 / static_cast<double>(1 + step * static_cast<int64_t>(group));
      numbers.weight_decay = 0.1 * static_cast<double>(step % 2);
      numbers.beta1 = group == 0 ? 0.9 : 0.8;
      auto& torchs =
          static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[group].options());
      torchs.lr(numbers.learning_rate).weight_decay(numbers.weight_decay);
      torchs.betas({numbers.beta1, numbers.beta2});
    }

    adamw.zero_grad();
    for (Net* each : {&plain, &net})
      (step % 3 == 2 ? each->first.pow(2).mean() : each->Loss(step)).backward();
    adamw.step();
    training.Step(groups);
  }
  for (const char* name : {"first", "middle", "bias"})
    EXPECT_TRUE(at::allclose(training.Weights(name), plain.named_parameters()[name], 1e-3, 1e-5))
        << name;

  const at::Tensor bias = training.Weights("bias");
  net.first.pow(2).mean().backward();
  std::vector<GroupStep> one(1), bad(2);
  bad[1].beta1 = 1;
  EXPECT_EQ(ErrorOf([&] { training.Step(one); }).id(), "UsageError");
  EXPECT_THAT(ErrorOf([&] { training.Step(bad); }).where(), HasSubstr("parameter group 1"));
  training.Step(1e-2);
  EXPECT_TRUE(at::equal(training.Weights("bias"), bias));
  training.Close();
}

TEST(Train, ConvertsAModuleToTheDTypeOfTheJob) {
  Net net = Made();
  const at::Tensor scale = net.scale.clone();
  TrainOptions options = Private();
  options.dtype = "bf16";
  options.states = "split";
  Training training = Train(net, options);

  TakeSteps(&net, &training, 3);
  EXPECT_EQ(net.middle.scalar_type(), at::kBFloat16);
  EXPECT_EQ(training.Weights("last").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(training.Weights("scale"), scale.to(at::kBFloat16)));
  EXPECT_EQ(net.named_parameters()["table"].scalar_type(), at::kLong);
}

TEST(Train, KeepsInFp32WhatTheCallerNames) {
  Net net = Made();
  const at::Tensor scale = net.scale.clone();
  TrainOptions options = Private();
  options.dtype = "bf16";
  options.states = "split-8bit";
  options.keep_fp32 = {"bias", "sc*"};
  Training training = Train(net, options);

  TakeSteps(&net, &training, 3);
  EXPECT_EQ(net.middle.scalar_type(), at::kBFloat16);
  EXPECT_EQ(training.Weights("bias").scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(training.Weights("scale"), scale)) << "frozen, and not rounded";
  EXPECT_FALSE(at::equal(training.Weights("bias"), Made().bias));
  training.Close();

  options.keep_fp32 = {"nothing"};
  Net other = Made();
  const Error error = ErrorOf([&] { Train(other, options); });
  EXPECT_EQ(error.id(), "UsageError");
  EXPECT_THAT(error.what(), HasSubstr("a name like nothing"));
}

TEST(Train, TakesEachParameterAsItIsWhereNoDTypeIsGiven) {
  Net net = Made();
  net.middle.set_data(net.middle.to(at::kBFloat16));
  const at::Tensor table = net.named_parameters()["table"].clone();
  Training training = Train(net, Private());
  TakeSteps(&net, &training, 2);
  EXPECT_EQ(training.Weights("middle").scalar_type(), at::kBFloat16);
  EXPECT_EQ(training.Weights("first").scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(training.Weights("table"), table)) << "whole numbers are frozen bytes";
}

TEST(Train, GivesAModuleBackAsItWasWhereTheStartFails) {
  Net net = Made();
  const at::Tensor middle = net.middle.clone();
  TrainOptions options = Private();
  options.dtype = "bf16";
  options.rcache = "1KiB";

  const Error error = ErrorOf([&] { Train(net, options); });
  EXPECT_EQ(error.id(), "RcacheTooSmall");
  EXPECT_THAT(error.fix(), HasSubstr("give at least"));
  EXPECT_THAT(error.what(), HasSubstr(error.sentence()));
  EXPECT_TRUE(at::equal(net.middle, middle));

  Training training = Train(net, Private());
  TakeSteps(&net, &training, 1);
}

TEST(Train, GoesOnBehindTheLastStepOfAJobThatWasLeft) {
  Net other = Made();
  TrainOptions with_room = Private();
  with_room.pool = "64MiB";
  Training host = Train(other, with_room);

  TrainOptions options;
  options.quiet = true;
  options.socket_dir = host.socket_dir();
  options.job = "kept";
  at::Tensor middle;
  {
    Net net = Made();
    Training training = Train(net, options);
    EXPECT_EQ(training.job(), "kept");
    TakeSteps(&net, &training, 3);
    middle = training.Weights("middle");
  }

  Net net = Made(2);  // whose frozen values are others
  EXPECT_EQ(ErrorOf([&] { Train(net, options); }).id(), "JobMismatch");
  net.scale.copy_(other.scale);
  Training training = Train(net, options);
  EXPECT_TRUE(training.resumed());
  EXPECT_EQ(training.sealed_steps(), 3u);
  EXPECT_TRUE(at::equal(training.Weights("middle"), middle));
  TakeSteps(&net, &training, 1);
  TakeSteps(&other, &host, 1);  // both train on this thread
  training.Close();

  Net again = Made();
  EXPECT_FALSE(Train(again, options).resumed());
}

TEST(Train, GoesOnAfterAnExceptionInBackward) {
  Net net = Made();
  Training training = Train(net, Private());
  TakeSteps(&net, &training, 1);

  const unsigned hook = net.middle.register_hook(
      [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a hook of the user's"); });
  EXPECT_THROW(net.Loss(1).backward(), std::runtime_error);
  net.middle.remove_hook(hook);
  EXPECT_THROW(training.Step(1e-2), Error);

  training.BeginForward(true);
  net.Loss(1).backward();
  EXPECT_EQ(training.Step(1e-2).sealed_steps, 2u);
}

TEST(Train, NamesWhatIsWrongWithAnOption) {
  Net net = Made();
  TrainOptions options = Private();
  options.groups = {{.names = {"bais"}}};
  EXPECT_THAT(ErrorOf([&] { Train(net, options); }).sentence(), HasSubstr("parameter bais"));

  options = Private();
  options.device = "gpu";
  EXPECT_THAT(ErrorOf([&] { Train(net, options); }).fix(), HasSubstr("cuda:N"));
  options = Private();
  options.beta1 = NAN;
  EXPECT_THAT(ErrorOf([&] { Train(net, options); }).sentence(), HasSubstr("\"beta1\""));
  options = Private();
  options.dtype = "fp16";
  EXPECT_EQ(ErrorOf([&] { Train(net, options); }).id(), "UsageError");
  options = Private();
  options.memserver = "/no/such/memserver";
  EXPECT_THAT(ErrorOf([&] { Train(net, options); }).what(), HasSubstr("/no/such/memserver"));
}

TEST(Train, RefusesParametersThatOverlap) {
  Net net = Made();
  net.register_parameter("row", net.middle.detach()[3]);
  const Error error = ErrorOf([&] { Train(net, Private()); });
  EXPECT_THAT(error.sentence(), HasSubstr("middle and row share memory"));
}

// Somebody else's hook.
struct Others final : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor&) override {}
};

TEST(Train, RefusesAParameterWhoseHookIsTaken) {
  Net net = Made();
  torch::autograd::impl::set_post_acc_grad_hooks(net.middle, std::make_unique<Others>());
  EXPECT_THAT(ErrorOf([&] { Train(net, Private()); }).sentence(), HasSubstr("middle"));

  torch::autograd::impl::set_post_acc_grad_hooks(net.middle, nullptr);
  Training training = Train(net, Private());
  TakeSteps(&net, &training, 1);
}

TEST(Train, RefusesCallsOutOfOrderAndChangesNothing) {
  Net net = Made();
  Training training = Train(net, Private());
  EXPECT_EQ(ErrorOf([&] { training.Step(1e-2); }).id(), "UsageError");
  EXPECT_EQ(ErrorOf([&] { training.Weights("none"); }).where(), "none");

  net.Loss(0).backward();
  EXPECT_THAT(ErrorOf([&] { training.Weights("bias"); }).fix(), HasSubstr("Step"));
  EXPECT_EQ(ErrorOf([&] { training.Step(NAN); }).id(), "UsageError");
  EXPECT_EQ(training.Step(1e-2).sealed_steps, 1u);

  Training moved = std::move(training);
  EXPECT_EQ(ErrorOf([&] { training.rank(); }).id(), "UsageError");  // NOLINT: what is moved from
  moved.Close();
  moved.Close();
  EXPECT_THAT(ErrorOf([&] { moved.Step(1e-2); }).why(), HasSubstr("closed"));
}

}  // namespace
}  // namespace tidepool::train_test
