#include "optim/undo_tile.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/point.h"
#include "tests/optim/undo_world.h"

namespace tidepool::optim {
namespace {

using State = Progress::State;

class TileUpdateTest : public testing::Test {
 protected:
  ~TileUpdateTest() override { SetPointHook({}); }

  void Run(uint64_t worker, uint64_t piece) { TileUpdate(kernels_, world_->AreasOf(worker)).Run(world_->PieceOf(piece)); }
  void KillIn(uint64_t worker, uint64_t piece) {
    RunUntilKilled(kernels_, [&](const Kernels& killed) { TileUpdate(killed, world_->AreasOf(worker)).Run(world_->PieceOf(piece)); });
  }
  RestoreOutcome Restore(uint64_t piece) { return RestoreOpenTile(world_->PieceOf(piece), world_->AllAreas()); }

  const Kernels& kernels_ = SelectKernels(BestIsa());
  const std::unique_ptr<UndoWorld> world_ = std::make_unique<UndoWorld>();
  const std::unique_ptr<UndoWorld> expected_ = std::make_unique<UndoWorld>(UpdatedWorld(kernels_));
};

TEST(ProgressWord, KeepsWhatIsStored) {
  ProgressWord word;
  EXPECT_EQ(word.Load(), Progress{});
  for (const Progress& progress : {Progress{1, 0, State::kOpen}, Progress{(1ULL << 40) - 1, (1ULL << 22) - 1, State::kFinished},
                                   Progress{12345, 678, State::kClosed}}) {
    word.Store(progress);
    EXPECT_EQ(word.Load(), progress);
  }
}

TEST(ProgressWordDeathTest, TooLargeATileIsABug) {
  ProgressWord word;
  EXPECT_DEATH(word.Store({1, 1ULL << 22, State::kOpen}), "does not fit");
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
  for (uint64_t i = 100; i < 112; ++i) ASSERT_EQ(world_->master[0][i], before.master[0][i]);
  EXPECT_NE(world_->master[0][99], before.master[0][99]);
  EXPECT_NE(world_->master[0][112], before.master[0][112]);
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
  SetPointHook([&](const char* name) { points.emplace_back(name); });
  Run(0, 1);
  const std::vector<std::string> tile = {"optim.tile_saved", "optim.tile_progress", "optim.tile_written"};
  std::vector<std::string> expected = tile;
  expected.insert(expected.end(), tile.begin(), tile.end());
  expected.emplace_back("optim.piece_finished");
  EXPECT_EQ(points, expected);
}

// A kill at the n-th point of the whole run, for every n, and a second one at the m-th point of recovery, for every m.
TEST_F(TileUpdateTest, KillsAtEveryPairOfPointsLoseNothing) {
  uint64_t points_left = 0;
  SetPointHook([&](const char*) {
    if (points_left > 0 && --points_left == 0) throw Killed();
  });
  const auto killed = [&](uint64_t at_point, UndoWorld& world) {
    points_left = at_point;
    try {
      EXPECT_TRUE(Recover(world, kernels_));
    } catch (const Killed&) {
      return true;
    }
    points_left = 0;
    return false;
  };
  uint64_t pairs = 0;
  for (uint64_t n = 1;; ++n) {
    UndoWorld first;
    if (!killed(n, first)) break;
    for (uint64_t m = 1;; ++m, ++pairs) {
      UndoWorld second = first;
      const bool again = killed(m, second);
      EXPECT_TRUE(Recover(second, kernels_));
      ASSERT_TRUE(SameStates(second, *expected_)) << "killed at points " << n << " and " << m;
      if (!again) break;
    }
  }
  EXPECT_GT(pairs, 150U);
}

TEST_F(TileUpdateTest, RestoreBringsTheOldValuesBack) {
  const UndoWorld before = *world_;
  KillIn(0, 0);
  EXPECT_FALSE(SameStates(*world_, before));
  EXPECT_EQ(Restore(0), RestoreOutcome::kRestored);
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
  world_->progress[0].Store({kNewVersion, 4000, State::kOpen});
  EXPECT_EQ(Restore(0), RestoreOutcome::kUndoLost);
  *world_ = killed;
  world_->progress[0].Store({kNewVersion - 1, 0, State::kOpen});
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
  world_->progress[0].Store({kNewVersion - 1, 1, State::kClosed});
  EXPECT_DEATH(Run(0, 0), "was not finished");
}

}  // namespace
}  // namespace tidepool::optim
