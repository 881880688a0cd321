// ExpectRecomputationChangesNoBit: a model with activation checkpointing beside the same without.
#pragma once

#include <gtest/gtest.h>

#include "trainer/model/gpt.h"

namespace tidepool::trainer {

// Both models have the same weights, and have seen nothing yet. Compares loss and gradients.
inline void ExpectRecomputationChangesNoBit(Gpt* plain, Gpt* again, const at::Tensor& tokens,
                                            const at::Tensor& targets) {
  again->SetCheckpointing(true);
  const at::Tensor a = plain->Loss(tokens, targets), b = again->Loss(tokens, targets);
  EXPECT_TRUE(a.equal(b));

  a.backward();
  b.backward();
  const auto others = again->named_parameters();
  for (const auto& item : plain->named_parameters())
    EXPECT_TRUE(item.value().grad().equal(others[item.key()].grad())) << item.key();
}

}  // namespace tidepool::trainer
