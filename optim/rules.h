// The table of update rules, one line each. A rule's number in StepFactors is its index in this
// list.
//
// For the files that are compiled once per instruction set, the scalar reference and
// update_rule.cpp.
#pragma once

#include "optim/rules/adagrad.h"
#include "optim/rules/adam.h"
#include "optim/rules/lion.h"
#include "optim/rules/sgd.h"

namespace tidepool::optim {
namespace {

template <typename... Rules>
struct RuleList {
  static constexpr uint32_t kCount = sizeof...(Rules);
};

using AllRules = RuleList<AdamRule<true>,       //
                          AdamRule<false>,      //
                          SgdRule,              //
                          MomentumRule<false>,  //
                          MomentumRule<true>,   //
                          AdagradRule,          //
                          LionRule>;

template <typename Rule>
typename Rule::Factors FactorsOf(const StepFactors& factors) {
  static_assert(sizeof(typename Rule::Factors) <= kFactorBytes);
  typename Rule::Factors own;
  __builtin_memcpy(&own, factors.numbers, sizeof own);
  return own;
}

}  // namespace
}  // namespace tidepool::optim
