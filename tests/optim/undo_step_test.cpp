#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/optim/single_step.h"
#include "tests/optim/undo_twin.h"
#include "tests/optim/undo_world.h"

// A kill at every instruction. Worker 1 has been killed in the middle of piece 2; worker 0's area
// still holds an older copy of the same tile, from a kill and recovery before that. Worker 0 now
// updates pieces 0 and 1, one instruction at a time, and before each of them the whole kept memory
// is copied and recovered. Every copy must end with the same bits as an update that nothing
// disturbs.

namespace tidepool::optim {
namespace undo_step_test {

const Kernels& Fast() {
  return SelectKernels(BestIsa());
}

struct Campaign {
  void (*work)(UndoWorld& world, const Kernels& kernels);
  bool (*recover)(UndoWorld& world);
  const Kernels* kernels = nullptr;
  std::unique_ptr<UndoWorld> world;
  std::unique_ptr<UndoWorld> copy = std::make_unique<UndoWorld>();
  std::unique_ptr<UndoWorld> expected = std::make_unique<UndoWorld>(UpdatedWorld(Fast()));
  uint64_t instructions = 0;
  uint64_t failures = 0;
  uint64_t sample_every = 0;       // 0: keep no copies
  std::vector<UndoWorld> samples;  // worlds as killed, to be recovered under kills

  void Run() {
    if (sample_every > 0) samples.reserve(300);
    instructions = SingleStep([](void* self) { static_cast<Campaign*>(self)->Work(); },
                              [](void* self) { static_cast<Campaign*>(self)->Observe(); }, this);
  }
  void Work() { work(*world, *kernels); }
  void Observe() {
    *copy = *world;
    if (sample_every > 0 && ++seen_ % sample_every == 0 && samples.size() < samples.capacity())
      samples.push_back(*world);
    if (!recover(*copy) || !SameStates(*copy, *expected)) ++failures;
  }

 private:
  uint64_t seen_ = 0;
};

std::unique_ptr<UndoWorld> DisturbedWorld(StateForm form = StateForm::kF32) {
  auto world = std::make_unique<UndoWorld>(form);
  RunUntilKilled(Fast(), [&](const Kernels& killed) {
    TileUpdate(killed, world->AreasOf(0)).Run(world->PieceOf(2));
  });
  EXPECT_EQ(RestoreOpenTile(world->PieceOf(2), world->AllAreas()), RestoreOutcome::kRestored);
  RunUntilKilled(Fast(), [&](const Kernels& killed) {
    TileUpdate(killed, world->AreasOf(1)).Run(world->PieceOf(2));
  });
  EXPECT_EQ(world->progress[2].Load(),
            (Progress{kNewVersion, 0, Progress::State::kOpen, kTileElements}));
  return world;
}

Campaign RealCampaign(const Kernels& kernels, StateForm form = StateForm::kF32) {
  Campaign campaign;
  campaign.kernels = &kernels;
  campaign.world = DisturbedWorld(form);
  *campaign.expected = UpdatedWorld(Fast(), form);
  campaign.work = [](UndoWorld& world, const Kernels& k) {
    TileUpdate update(k, world.AreasOf(0));
    update.Run(world.PieceOf(0));
    update.Run(world.PieceOf(1));
  };
  campaign.recover = [](UndoWorld& world) { return Recover(world, Fast()); };
  return campaign;
}

TEST(UndoStep, AKillAtAnyInstructionLosesNothing) {
  Campaign campaign = RealCampaign(Fast());
  campaign.Run();
  EXPECT_GT(campaign.instructions, 1000U);
  EXPECT_EQ(campaign.failures, 0U) << "of " << campaign.instructions;
}

TEST(UndoStep, AKillAtAnyInstructionOfTheScalarLoopLosesNothing) {
  Campaign campaign = RealCampaign(SelectKernels(IsaLevel::kScalarReference));
  campaign.Run();
  EXPECT_GT(campaign.instructions, 10'000U);
  EXPECT_EQ(campaign.failures, 0U) << "of " << campaign.instructions;
}

// Forms of states in which the 16-bit parameters, or scales, change in place.
TEST(UndoStep, AKillAtAnyInstructionLosesNothingOfSmallerStates) {
  for (const StateForm form : {StateForm::kSplit, StateForm::kSplitBf16, StateForm::kSplit8}) {
    Campaign campaign = RealCampaign(Fast(), form);
    campaign.Run();
    EXPECT_GT(campaign.instructions, 1000U);
    EXPECT_EQ(campaign.failures, 0U) << "of " << campaign.instructions << ", " << NameOf(form);
  }
}

// A second kill, at every instruction of the recovery from some of the first ones.
TEST(UndoStep, AKillAtAnyInstructionOfRecoveryLosesNothing) {
  Campaign first = RealCampaign(Fast());
  first.sample_every = 331;
  first.Run();
  ASSERT_GE(first.samples.size(), 4U);
  uint64_t instructions = 0;
  for (const UndoWorld& sample : first.samples) {
    Campaign second;
    second.kernels = &Fast();
    second.world = std::make_unique<UndoWorld>(sample);
    second.work = [](UndoWorld& world, const Kernels& kernels) {
      static_cast<void>(Recover(world, kernels));
    };
    second.recover = first.recover;
    second.Run();
    instructions += second.instructions;
    ASSERT_EQ(second.failures, 0U);
    ASSERT_TRUE(SameStates(*second.world, *second.expected));
  }
  EXPECT_GT(instructions, 1000U * first.samples.size());
}

template <TwinRules kRules>
Campaign TwinCampaign() {
  Campaign campaign;
  campaign.kernels = &Fast();
  campaign.world = DisturbedWorld();
  if (!kRules.progress_per_piece)
    campaign.world->worker_progress[1] = 2ULL << 32 | static_cast<uint64_t>(Progress::State::kOpen);
  campaign.work = [](UndoWorld& world, const Kernels& kernels) {
    UndoTwin twin(kRules, kernels, world);
    twin.Run(0, 0);
    twin.Run(0, 1);
  };
  campaign.recover = [](UndoWorld& world) { return UndoTwin(kRules, Fast(), world).Recover(); };
  campaign.Run();
  return campaign;
}

TEST(UndoTwin, WithAllRulesLosesNothing) {
  EXPECT_EQ(TwinCampaign<TwinRules{}>().failures, 0U);
}

TEST(UndoTwin, WithOneAreaIsCaught) {
  EXPECT_GT(TwinCampaign<TwinRules{.two_areas = false}>().failures, 0U);
}

TEST(UndoTwin, WithProgressPerWorkerIsCaught) {
  EXPECT_GT(TwinCampaign<TwinRules{.progress_per_piece = false}>().failures, 0U);
}

TEST(UndoTwin, ThatOpensATileBeforeSavingItIsCaught) {
  EXPECT_GT(TwinCampaign<TwinRules{.save_before_open = false}>().failures, 0U);
}

TEST(UndoTwin, ThatOverwritesAnAreaUnderItsOldNameIsCaught) {
  EXPECT_GT(TwinCampaign<TwinRules{.clear_before_save = false}>().failures, 0U);
}

TEST(UndoTwin, ThatRunsAWorkerBeforeAllIsRestoredIsCaught) {
  EXPECT_GT(TwinCampaign<TwinRules{.restore_all_first = false}>().failures, 0U);
}

}  // namespace undo_step_test
}  // namespace tidepool::optim
