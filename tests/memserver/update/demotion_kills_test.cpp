// Demotions that the death of a server cuts off: the states lie in one place, and the next server
// goes on with the same bits.
#include <gtest/gtest.h>

#include <string>

#include "base/point.h"
#include "tests/memserver/update/demotion_fixture.h"

namespace tidepool::memserver {
namespace demotion_kills_test {

using demotion_fixture::ExpectSums;
using demotion_fixture::OnHost;
using demotion_fixture::Pair;
using demotion_fixture::RoomForOne;
using demotion_fixture::Shape;
using demotion_fixture::SpecOf;

struct Killed {};

// At the `hits`-th time that a server passes the point, it is dead. False: it never did.
bool KillAt(Pair* run, const std::string& point, uint32_t hits) {
  SetPointHook([&](const char* passed) {
    if (point == passed && --hits == 0) throw Killed();
  });
  bool died = false;
  try {
    run->Ask();
    run->world.Settle();
  } catch (const Killed&) {
    died = true;
  }
  SetPointHook(nullptr);
  run->world.Restart();
  EXPECT_TRUE(run->world.recovered().ok()) << run->world.recovered().Line();
  return died;
}

class DemotionKills : public ::testing::TestWithParam<Shape> {};

TEST_P(DemotionKills, AtEveryPointLeaveTheStatesInOnePlace) {
  const Weights expected = OnHost(GetParam(), 4);
  for (const char* point :
       {"server.demotion_begun", "server.demotion_staged", "server.demotion_written",
        "server.demotion_noted", "server.demotion_committed", "server.demotion_followed",
        "server.demotion_ended", "server.job_reserved"}) {
    for (uint32_t hits = 1; hits <= (std::string(point) == "server.demotion_staged" ? 3 : 1);
         hits += 2) {
      Pair run(GetParam(), RoomForOne(SpecOf(GetParam()), 2));
      run.Detach(2);
      const bool died = KillAt(&run, point, hits);
      EXPECT_TRUE(died || hits > 1) << point;
      ExpectSums(run.world);
      const bool moved = run.job()->states->demoted() > 0;
      EXPECT_EQ(run.world.tier().used_bytes(), moved ? shm::NvmeBytesOf(SpecOf(GetParam()), 0) : 0)
          << point;
      EXPECT_EQ(run.GoOn(2), expected) << point;
    }
  }
}

TEST_P(DemotionKills, BetweenAnyTwoTurnsLeaveTheStatesInOnePlace) {
  const Weights expected = OnHost(GetParam(), 4);
#ifdef TIDEPOOL_SANITIZED
  constexpr uint32_t kStride = 11;
#else
  constexpr uint32_t kStride = 1;
#endif
  // So many elements take their time.
  const uint32_t stride = GetParam().chunk_elements > 100'000 ? 4 * kStride : kStride;
  bool moved = false;
  for (uint32_t turns = 1; !moved; turns += stride) {
    ASSERT_LT(turns, 400u);
    Pair run(GetParam(), RoomForOne(SpecOf(GetParam()), 2));
    run.world.disk().Pace(2);
    run.Detach(2);
    run.Ask();
    run.Turns(turns);
    moved = run.job()->states->demoted() > 0;
    run.world.Restart();
    ExpectSums(run.world);
    ASSERT_EQ(run.job()->states->demoted() > 0, moved);
    ASSERT_EQ(run.GoOn(2), expected) << turns;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DemotionKills,
                         ::testing::Values(Shape{}, Shape{.dtype = DType::kF32, .world = 2},
                                           Shape{.states = StateForm::kSplit8},
                                           Shape{.states = StateForm::kSplit, .f32_chunks = 1},
                                           Shape{.chunk_elements = 270'336, .chunks = 1}));

// An old note of a move that did not come about says nothing about the next one, to another place.
TEST(Demotion, AMoveThatWasCutOffIsMadeAgain) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape), 2));
  run.Detach(2);
  ASSERT_TRUE(KillAt(&run, "server.demotion_noted", 1));
  ASSERT_EQ(run.job()->states->demoted(), 0u);
  run.Ask();
  ASSERT_TRUE(run.Granted());
  run.world.Restart();
  EXPECT_EQ(run.job()->states->demoted(), 4u);
  EXPECT_EQ(run.GoOn(2), OnHost(shape, 4));
}

TEST(Demotion, ANoteThatDoesNotFitItsCheckGivesTheJobUp) {
  const Shape shape;
  for (uint32_t bit = 0; bit < 64; bit += 7) {
    Pair run(shape, RoomForOne(SpecOf(shape)));
    run.Detach(1);
    run.Ask();
    ASSERT_TRUE(run.Granted());
    run.job()->states->record().demoted.fetch_xor(uint64_t{1} << bit);
    run.world.Restart();
    EXPECT_EQ(run.job(), nullptr) << bit;
    EXPECT_EQ(run.world.pool().free_bytes(), run.world.pool().total_bytes());
    EXPECT_EQ(run.world.tier().used_bytes(), 0u);
  }
}

TEST(Demotion, OfAnotherServerIsFoundOnTheSameDirectoriesOnly) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape), 2));
  run.Detach(2);
  run.Ask();
  ASSERT_TRUE(run.Granted());
  for (const auto given : {ServeWorld::Given::kNone, ServeWorld::Given::kReversed}) {
    run.world.GiveDisks(given);
    run.world.Restart();
    EXPECT_EQ(run.world.recovered().id(), ErrorId::kNvmeDirectoryMissing)
        << run.world.recovered().Line();
  }
  run.world.GiveDisks(ServeWorld::Given::kAll);
  run.world.Restart();
  ASSERT_TRUE(run.world.recovered().ok()) << run.world.recovered().Line();
  EXPECT_EQ(run.GoOn(1), OnHost(shape, 3));
}

}  // namespace demotion_kills_test
}  // namespace tidepool::memserver
