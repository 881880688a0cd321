#include "optim/undo_tile.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/point.h"
#include "tests/optim/undo_world.h"

namespace tidepool::optim {
namespace undo_tile_test {

using State = Progress::State;

class TileUpdateTest : public ::testing::Test {
 protected:
  ~TileUpdateTest() override { SetPointHook({}); }

  void Run(uint64_t worker, uint64_t piece) {
    TileUpdate(kernels_, world_->AreasOf(worker)).Run(world_->PieceOf(piece));
  }
  void KillIn(uint64_t worker, uint64_t piece) {
    RunUntilKilled(kernels_, [&](const Kernels& killed) {
      TileUpdate(killed, world_->AreasOf(worker)).Run(world_->PieceOf(piece));
    });
  }
  RestoreOutcome Restore(uint64_t piece) {
    return RestoreOpenTile(world_->PieceOf(piece), world_->AllAreas());
  }

  const Kernels& kernels_ = SelectKernels(BestIsa());
  const std::unique_ptr<UndoWorld> world_ = std::make_unique<UndoWorld>();
  const std::unique_ptr<UndoWorld> expected_ = std::make_unique<UndoWorld>(UpdatedWorld(kernels_));
};

TEST(ProgressWord, KeepsWhatIsStored) {
  ProgressWord word;
  EXPECT_EQ(word.Load(), Progress{});
  for (const Progress& progress :
       {Progress{1, 0, State::kOpen, 64}, Progress{1, 512, State::kOpen, 128},
        Progress{1, 1ULL << 20, State::kOpen, 256},
        Progress{(1ULL << 39) - 1, ((1ULL << 22) - 1) * 64, State::kFinished},
        Progress{12345, 678 * 64, State::kClosed}}) {
    word.Store(progress);
    EXPECT_EQ(word.Load(), progress);
  }
}

TEST(ProgressWordDeathTest, WhatDoesNotFitIsABug) {
  ProgressWord word;
  EXPECT_DEATH(word.Store({1, 64ULL << 22, State::kOpen, 64}), "does not fit");
  EXPECT_DEATH(word.Store({1ULL << 39, 0, State::kOpen, 64}), "does not fit");
  EXPECT_DEATH(word.Store({1, 0, State::kOpen, 300}), "no such tile");
}

TEST(ProgressWord, ReadsDamageAsATileThatNobodyCanRestore) {
  for (const uint64_t state : {5, 6, 7}) {
    const uint64_t bits = kNewVersion << 25 | state;
    ProgressWord word;
    std::memcpy(static_cast<void*>(&word), &bits, sizeof bits);
    EXPECT_EQ(word.Load(), (Progress{kNewVersion, 0, State::kOpen, 0}));
  }
}

TEST_F(TileUpdateTest, GivesTheBitsOfThePlainUpdate) {
  for (uint64_t piece = 0; piece < kPieces; ++piece) Run(0, piece);
  EXPECT_TRUE(SameStates(*world_, *expected_));
  for (uint64_t piece = 0; piece < kPieces; ++piece)
    EXPECT_EQ(world_->progress[piece].Load(), (Progress{kNewVersion, 0, State::kFinished}));
}

TEST_F(TileUpdateTest, LeavesElementsOfNoGroupAlone) {
  const UndoWorld before = *world_;
  Run(0, 0);
  const auto same = [&](uint64_t begin, uint64_t end) {
    return std::memcmp(&world_->master[0][4 * begin], &before.master[0][4 * begin],
                       4 * (end - begin)) == 0;
  };
  EXPECT_TRUE(same(100, 128));
  EXPECT_FALSE(same(99, 100));
  EXPECT_FALSE(same(128, 129));
}

TEST_F(TileUpdateTest, FinishedPieceIsNotUpdatedAgain) {
  Run(0, 1);
  const UndoWorld once = *world_;
  Run(1, 1);
  EXPECT_TRUE(SameStates(*world_, once));
}

TEST_F(TileUpdateTest, EmptyPieceIsFinishedAtOnce) {
  Piece piece = world_->PieceOf(0);
  piece.planes.count = 0;
  TileUpdate(kernels_, world_->AreasOf(0)).Run(piece);
  EXPECT_EQ(world_->progress[0].Load().state, State::kFinished);
}

TEST_F(TileUpdateTest, HitsItsPointsInTheOrderOfTheProtocol) {
  std::vector<std::string> points;
  SetPointHook([&](const char* name) {
    if (!std::string_view(name).ends_with("_plane_stored")) points.emplace_back(name);
  });
  TileUpdate(kernels_, world_->AreasOf(0), {.each_tile = true}).Run(world_->PieceOf(1));
  // Tile 1 is cut by the end of a group, tile 4 by that of the piece; the others are opened inside
  // the loops.
  const char *const saved = "optim.tile_saved", *const opened = "optim.tile_progress",
                    *const written = "optim.tile_written";
  EXPECT_EQ(points, (std::vector<std::string>{written, saved, opened, written, written, written,
                                              saved, opened, written, "optim.piece_finished"}));
}

class TileUpdateKills : public ::testing::TestWithParam<StateForm> {
 protected:
  ~TileUpdateKills() override { SetPointHook({}); }
};

// A kill at the n-th point of the whole run, for every n, and a second one at the m-th point of
// recovery, for every m.
TEST_P(TileUpdateKills, AtEveryPairOfPointsLoseNothing) {
  const Kernels& kernels = SelectKernels(BestIsa());
  const Tuning tuning{kPrefetchElements, true}, next_tuning{2 * kPrefetchElements, true};
  const auto expected = std::make_unique<UndoWorld>(UpdatedWorld(kernels, GetParam()));
  uint64_t points_left = 0;
  SetPointHook([&](const char* name) {
    // Points of stores are the same place as the point before them.
    if (std::string_view(name).ends_with("_plane_stored")) return;
    if (points_left > 0 && --points_left == 0) throw Killed();
  });
  const auto killed = [&](uint64_t at_point, UndoWorld& world, const Tuning& life) {
    points_left = at_point;
    try {
      EXPECT_TRUE(Recover(world, kernels, life));
    } catch (const Killed&) {
      return true;
    }
    points_left = 0;
    return false;
  };
  uint64_t pairs = 0;
  for (uint64_t n = 1;; ++n) {
    UndoWorld first(GetParam());
    if (!killed(n, first, tuning)) break;
    for (uint64_t m = 1;; ++m, ++pairs) {
      UndoWorld second = first;
      const bool again = killed(m, second, next_tuning);
      EXPECT_TRUE(Recover(second, kernels, tuning));
      ASSERT_TRUE(SameStates(second, *expected)) << "killed at points " << n << " and " << m;
      if (!again) break;
    }
  }
  EXPECT_GT(pairs, 60U);
}

INSTANTIATE_TEST_SUITE_P(AllForms, TileUpdateKills,
                         ::testing::Values(StateForm::kF32, StateForm::kSplit,
                                           StateForm::kSplitBf16, StateForm::kSplit8));

// A tile may be torn anywhere; every plane that the form changes in place comes back.
TEST_P(TileUpdateKills, InMidTileLoseNothing) {
  const Kernels& kernels = SelectKernels(BestIsa());
  UndoWorld world(GetParam());
  const auto expected = std::make_unique<UndoWorld>(UpdatedWorld(kernels, GetParam()));
  for (uint64_t worker = 0; worker < kWorkers; ++worker) {
    RunUntilKilled(kernels, [&](const Kernels& killed) {
      TileUpdate(killed, world.AreasOf(worker)).Run(world.PieceOf(worker));
    });
  }
  ASSERT_TRUE(Recover(world, kernels));
  EXPECT_TRUE(SameStates(world, *expected));
}

TEST_F(TileUpdateTest, RestoreBringsTheOldValuesBack) {
  const UndoWorld before = *world_;
  KillIn(0, 0);
  EXPECT_FALSE(SameStates(*world_, before));
  EXPECT_EQ(Restore(0), RestoreOutcome::kRestored);
  // Beside an fp32 master it has no undo: it is written again.
  std::memcpy(world_->param16, before.param16, sizeof before.param16);
  EXPECT_TRUE(SameStates(*world_, before));
  EXPECT_EQ(world_->progress[0].Load(), (Progress{kNewVersion, 0, State::kClosed}));
  EXPECT_EQ(Restore(0), RestoreOutcome::kNothingOpen);
}

TEST_F(TileUpdateTest, RestoreLeavesFinishedAndUntouchedPiecesAlone) {
  Run(0, 0);
  const UndoWorld before = *world_;
  EXPECT_EQ(Restore(0), RestoreOutcome::kNothingOpen);
  EXPECT_EQ(Restore(1), RestoreOutcome::kNothingOpen);
  EXPECT_TRUE(SameStates(*world_, before));
}

TEST_F(TileUpdateTest, RestoreSaysWhenTheUndoIsLost) {
  KillIn(0, 0);
  const UndoWorld killed = *world_;
  world_->areas[0][0].piece = 0;
  EXPECT_EQ(Restore(0), RestoreOutcome::kUndoLost);
  *world_ = killed;
  world_->areas[0][0].version = kNewVersion - 1;
  EXPECT_EQ(Restore(0), RestoreOutcome::kUndoLost);
  *world_ = killed;
  world_->progress[0].Store({kNewVersion, 4000 * 64, State::kOpen, 64});
  EXPECT_EQ(Restore(0), RestoreOutcome::kUndoLost);
  *world_ = killed;
  world_->progress[0].Store({kNewVersion, 0, State::kOpen, 128});
  EXPECT_EQ(Restore(0), RestoreOutcome::kUndoLost) << "the area holds a shorter tile";
  *world_ = killed;
  world_->progress[0].Store({kNewVersion - 1, 0, State::kOpen, 64});
  EXPECT_EQ(Restore(0), RestoreOutcome::kUndoLost);
}

using TileUpdateDeathTest = TileUpdateTest;

TEST_F(TileUpdateDeathTest, RunOverAnOpenTileIsABug) {
  KillIn(0, 0);
  EXPECT_DEATH(Run(0, 0), "restore the open tile");
}

TEST_F(TileUpdateDeathTest, UpdateToAnOlderVersionIsABug) {
  world_->progress[0].Store({kNewVersion + 1, 0, State::kFinished});
  EXPECT_DEATH(Run(0, 0), "newer than its update");
}

TEST_F(TileUpdateDeathTest, UpdateOverAnUnfinishedOneIsABug) {
  world_->progress[0].Store({kNewVersion - 1, 256, State::kClosed});
  EXPECT_DEATH(Run(0, 0), "was not finished");
}

}  // namespace undo_tile_test
}  // namespace tidepool::optim
