#include "shm/spec/encode.h"
#include "shm/spec/spec_difference.h"

#include <gtest/gtest.h>

#include <functional>

namespace tidepool::shm {
namespace spec_difference_test {

JobSpec Spec() {
  JobSpec spec;
  spec.name = "job";
  spec.rcache_bytes = 8192;
  spec.parameter_groups = {{1.0F, 0.1F}, {1.0F, 0.0F}};
  spec.data_groups = {{0b1}};
  spec.chunks = {{64, 0}, {64, 0}};
  spec.parameters = {{"w", {64}, 0, 0, 0, 64}, {"v", {64}, 1, 1, 0, 64}};
  spec.frozen = {{16, DType::kF32, {}}};
  return spec;
}

TEST(SpecDifference, OfTheSameIsEmptyAndNamesDoNotCount) {
  JobSpec other = Spec();
  other.name = "another";
  EXPECT_EQ(DifferenceOf(Spec(), other), "");
}

// Every field that Encode writes: a description with other bytes has a difference to tell.
TEST(SpecDifference, NamesEveryFieldThatMakesOtherBytes) {
  struct Case {
    std::function<void(JobSpec*)> change;
    const char* told;
  };
  const std::vector<Case> cases{
      {[](JobSpec* s) { s->world = 2; }, "ranks 1, now 2"},
      {[](JobSpec* s) { s->dtype = DType::kBF16; }, "dtype fp32, now bf16"},
      {[](JobSpec* s) { s->sums_gradients = 1; }, "sums of gradients 0, now 1"},
      {[](JobSpec* s) { s->f32_chunks = 1; }, "fp32 chunks 0, now 1"},
      {[](JobSpec* s) { s->frozen[0].dtype = DType::kRaw; }, "frozen chunk 0 is another one"},
      {[](JobSpec* s) { s->optimizer.rule = OptimizerRule::kLion; }, "optimizer adamw, now lion"},
      {[](JobSpec* s) { s->optimizer.states = StateForm::kSplit; }, "states fp32, now split"},
      {[](JobSpec* s) { s->optimizer.beta1 = 0.5; }, "beta1 0.9, now 0.5"},
      {[](JobSpec* s) { s->optimizer.beta2 = 0.5; }, "beta2 0.999, now 0.5"},
      {[](JobSpec* s) { s->optimizer.eps = 1; }, "eps 1e-08, now 1"},
      {[](JobSpec* s) { s->optimizer.momentum = 0.5; }, "momentum 0, now 0.5"},
      {[](JobSpec* s) { s->optimizer.dampening = 0.5; }, "dampening 0, now 0.5"},
      {[](JobSpec* s) { s->optimizer.lr_decay = 0.5; }, "lr_decay 0, now 0.5"},
      {[](JobSpec* s) { s->optimizer.nesterov = 1; }, "nesterov 0, now 1"},
      {[](JobSpec* s) { s->optimizer.rounding_seed = 3; }, "seed of rounding 0, now 3"},
      {[](JobSpec* s) { s->max_grad_norm = 0.5F; }, "max_grad_norm 0, now 0.5"},
      {[](JobSpec* s) { s->micro_batches = 2; }, "micro_batches 1, now 2"},
      {[](JobSpec* s) { s->loss_scaling = 1; }, "loss_scaling 0, now 1"},
      {[](JobSpec* s) { s->rcache_bytes = 4096; }, "rcache_bytes 8192, now 4096"},
      {[](JobSpec* s) { s->parameter_groups[0].weight_decay = 0.2F; },
       "weight_decay of parameter group 0 0.1, now 0.2"},
      {[](JobSpec* s) { s->parameter_groups[1].lr_scale = 2; },
       "lr_scale of parameter group 1 1, now 2"},
      {[](JobSpec* s) { s->parameter_groups.pop_back(); }, "number of parameter groups 2, now 1"},
      {[](JobSpec* s) { s->data_groups[0].rank_mask = 3; }, "data group 0 is another one"},
      {[](JobSpec* s) { s->data_groups.push_back({1}); }, "number of data groups 1, now 2"},
      {[](JobSpec* s) { s->chunks[1].elements = 128; }, "chunk 1 is another one"},
      {[](JobSpec* s) { s->chunks.pop_back(); }, "number of chunks 2, now 1"},
      {[](JobSpec* s) { s->parameters[1].name = "u"; }, "parameter 1 is another one"},
      {[](JobSpec* s) {
         s->parameters[0].dims = {8, 8};
       },
       "parameter 0 is another one"},
      {[](JobSpec* s) { s->parameters[0].group = 1; }, "parameter 0 is another one"},
      {[](JobSpec* s) { s->frozen[0].content.bytes[3] = std::byte{1}; },
       "frozen chunk 0 is another one"},
      {[](JobSpec* s) { s->states_on_gpu = 1; }, "chunks with states on GPUs 0, now 1"},
  };
  for (const Case& one : cases) {
    JobSpec said = Spec();
    one.change(&said);
    EXPECT_NE(Encode(said), Encode(Spec()));
    EXPECT_EQ(DifferenceOf(Spec(), said), one.told);
  }
}

TEST(SpecDifference, TellsSeveralAtOnce) {
  JobSpec said = Spec();
  said.micro_batches = 4;
  said.max_grad_norm = 1;
  EXPECT_EQ(DifferenceOf(Spec(), said), "max_grad_norm 0, now 1; micro_batches 1, now 4");
}

}  // namespace spec_difference_test
}  // namespace tidepool::shm
