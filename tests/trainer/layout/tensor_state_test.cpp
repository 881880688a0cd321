// TensorStates: legal changes succeed, illegal ones name the parameter and change nothing.
#include "trainer/layout/tensor_state.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace tensor_state_test {

ChunkLayout TwoParameters() {
  const std::vector<ParameterNote> notes{{"fc.weight", {16, 16}, 0, 0, false},
                                         {"fc.bias", {16}, 0, 0, false}};
  return BuildLayout(notes, {}).value();
}

TEST(TensorStates, AStepOfOneParameterIsLegal) {
  const ChunkLayout layout = TwoParameters();
  TensorStates states(&layout);
  EXPECT_TRUE(states.ChangeChunk(0, TensorState::kHold).ok());
  EXPECT_TRUE(states.BeginUse(0).ok());
  EXPECT_TRUE(states.EndUse(0).ok());
  EXPECT_EQ(states.state(0), TensorState::kHoldAfterFwd);
  EXPECT_TRUE(states.BeginUse(0).ok());  // recomputation or backward
  EXPECT_TRUE(states.EndUse(0).ok());
  EXPECT_TRUE(states.Change(0, TensorState::kHoldAfterBwd).ok());
  EXPECT_FALSE(states.AllIn(0, TensorState::kHoldAfterBwd));
  EXPECT_TRUE(states.Change(1, TensorState::kHoldAfterBwd).ok());
  EXPECT_TRUE(states.AllIn(0, TensorState::kHoldAfterBwd));
  EXPECT_TRUE(states.ChangeChunk(0, TensorState::kFree).ok());
}

TEST(TensorStates, UseAfterTheGradientCameNamesTheParameter) {
  const ChunkLayout layout = TwoParameters();
  TensorStates states(&layout);
  ASSERT_TRUE(states.ChangeChunk(0, TensorState::kHold).ok());
  ASSERT_TRUE(states.Change(1, TensorState::kHoldAfterBwd).ok());
  const Status status = states.BeginUse(1);
  EXPECT_EQ(status.id(), ErrorId::kTensorStateIllegal);
  EXPECT_NE(status.what().find("fc.bias"), std::string::npos);
  EXPECT_NE(status.what().find("from HOLD_AFTER_BWD to COMPUTE"), std::string::npos);
  EXPECT_EQ(states.state(1), TensorState::kHoldAfterBwd);
}

TEST(TensorStates, NestedUsesAreCounted) {
  const ChunkLayout layout = TwoParameters();
  TensorStates states(&layout);
  ASSERT_TRUE(states.ChangeChunk(0, TensorState::kHold).ok());
  ASSERT_TRUE(states.BeginUse(0).ok());
  ASSERT_TRUE(states.BeginUse(0).ok());
  ASSERT_TRUE(states.EndUse(0).ok());
  EXPECT_EQ(states.state(0), TensorState::kCompute);
  // No eviction under an operator.
  EXPECT_EQ(states.Change(0, TensorState::kFree).id(), ErrorId::kTensorStateIllegal);
  ASSERT_TRUE(states.EndUse(0).ok());
  EXPECT_EQ(states.state(0), TensorState::kHoldAfterFwd);
}

TEST(TensorStates, APassForgetsTheUsesOfTheOneBefore) {
  const ChunkLayout layout = TwoParameters();
  TensorStates states(&layout);
  ASSERT_TRUE(states.ChangeChunk(0, TensorState::kHold).ok());
  ASSERT_TRUE(states.BeginUse(0).ok() && states.EndUse(0).ok());
  ASSERT_TRUE(states.Change(1, TensorState::kHoldAfterBwd).ok());
  states.BeginPass(0);
  EXPECT_EQ(states.state(0), TensorState::kHold);
  EXPECT_EQ(states.state(1), TensorState::kHoldAfterBwd) << "a gradient is no use";
}

// Any sequence of wishes: the table alone decides, refused wishes change nothing, and no path leads
// from a gradient back to a use but through kFree and a new gather.
TEST(TensorStates, AnySequenceOfWishesKeepsTheRules) {
  const ChunkLayout layout = TwoParameters();
  EXPECT_TRUE(rc::check("wishes", [&layout] {
    TensorStates states(&layout);
    const auto wishes =
        *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, kTensorStateCount));
    bool gradient = false;
    for (const int wish : wishes) {
      const TensorState before = states.state(0), to = static_cast<TensorState>(wish);
      const Status status = states.Change(0, to);
      RC_ASSERT(status.ok() == IsLegalTransition(before, to));
      RC_ASSERT(states.state(0) == (status.ok() ? to : before));
      RC_ASSERT(states.state(1) == TensorState::kFree);
      if (states.state(0) == TensorState::kFree) gradient = false;
      RC_ASSERT(!(gradient && states.state(0) == TensorState::kCompute));
      if (states.state(0) == TensorState::kHoldAfterBwd) gradient = true;
    }
  }));
}

TEST(TensorStates, EveryStateIsReachableAndCanEnd) {
  for (int from = 0; from < kTensorStateCount; ++from) {
    bool reachable = false, can_end = false;
    for (int other = 0; other < kTensorStateCount; ++other) {
      reachable |= other != from && IsLegalTransition(static_cast<TensorState>(other),
                                                      static_cast<TensorState>(from));
      can_end |= other != from &&
                 IsLegalTransition(static_cast<TensorState>(from), static_cast<TensorState>(other));
    }
    EXPECT_TRUE(reachable && can_end) << NameOf(static_cast<TensorState>(from));
  }
}

}  // namespace tensor_state_test
}  // namespace tidepool::trainer
