// The staging table: who owns a slot, and when it is free again.
#include "memserver/traffic/staging/staging_table.h"

#include <gtest/gtest.h>

#include <optional>

namespace tidepool::memserver {
namespace staging_table_test {

constexpr PieceTransfer kRead{.kind = nvme::IoKind::kRead, .range = 7};
constexpr PieceTransfer kWrite{.kind = nvme::IoKind::kWrite, .range = 7};

class Staging : public ::testing::Test {
 protected:
  uint32_t Take(uint32_t piece = 0) {
    const auto slot = one_.Take(0, 3, piece);
    EXPECT_TRUE(slot.has_value());
    return slot.value_or(0);
  }
  size_t free() const { return table_.free_slots().size(); }

  StagingTable table_{2};
  OwnedPieces one_{&table_, PieceOwner::kSpillQueue, 5};
  OwnedPieces other_{&table_, PieceOwner::kSpillQueue, 6};
};

TEST_F(Staging, APieceIsItsOwnersUntilThatFreesIt) {
  const uint32_t slot = Take();
  EXPECT_TRUE(one_.Has(slot));
  EXPECT_FALSE(other_.Has(slot));
  EXPECT_EQ(table_.at(slot).state, StagedState::kReady);
  EXPECT_EQ(one_.count(), 1u);
  EXPECT_EQ(other_.count(), 0u);
  one_.Free(slot);
  EXPECT_EQ(free(), StagingTable::kSlots);
  EXPECT_EQ(table_.at(slot).owner, PieceOwner::kNobody);
}

TEST_F(Staging, AnAnswerIsTheOwnersWhileThatWaits) {
  const uint32_t slot = Take();
  table_.BeginTransfer(slot, kRead);
  EXPECT_TRUE(one_.AnyMoving());
  EXPECT_TRUE(table_.EndTransfer(slot));
  EXPECT_TRUE(one_.Has(slot));
}

TEST_F(Staging, AFreedPieceKeepsItsSlotUntilItsAnswerComes) {
  const uint32_t slot = Take();
  table_.BeginTransfer(slot, kWrite);
  table_.NoteLate(slot, {.told = true, .lost = true});
  one_.Free(slot);
  EXPECT_EQ(one_.count(), 0u);
  EXPECT_EQ(table_.at(slot).state, StagedState::kAbandoned);
  EXPECT_EQ(free(), StagingTable::kSlots - 1);
  EXPECT_TRUE(table_.MayStillWrite(7, 0));
  EXPECT_FALSE(table_.MayStillWrite(7, 1)) << "of another directory";
  EXPECT_FALSE(table_.MayStillWrite(8, 0)) << "of another range";
  EXPECT_FALSE(table_.EndTransfer(slot)) << "nobody waits for it";
  EXPECT_EQ(free(), StagingTable::kSlots);
  EXPECT_FALSE(table_.MayStillWrite(7, 0));
  EXPECT_FALSE(table_.at(slot).late.told) << "the next transfer in the slot is not late";
}

TEST_F(Staging, AReadThatIsAbandonedHoldsNoRange) {
  const uint32_t slot = Take();
  table_.BeginTransfer(slot, kRead);
  one_.Free(slot);
  EXPECT_FALSE(table_.MayStillWrite(7, 0));
}

TEST_F(Staging, ADirectoryLeavesSomeSlotsToEachOther) {
  uint32_t taken = 0;
  while (one_.Take(0, 0, taken)) ++taken;
  EXPECT_LT(taken, StagingTable::kSlots);
  EXPECT_FALSE(table_.HasRoom(0));
  EXPECT_TRUE(other_.Take(1, 0, 0).has_value());
  EXPECT_EQ(table_.taken(0), taken);
}

TEST_F(Staging, WhatIsNotDueLeavesRoomToOthers) {
  uint32_t taken = 0;
  while (table_.HasRoomToSpare(0)) {
    Take(taken);
    ++taken;
  }
  EXPECT_GT(taken, 0u);
  EXPECT_TRUE(table_.HasRoom(0));
}

TEST_F(Staging, TheOldestIsFoundWhateverItsSlot) {
  const uint32_t first = Take(0), second = Take(1);
  one_.Free(first);
  const uint32_t third = Take(2);
  EXPECT_EQ(third, first) << "the slot that was freed last is taken first";
  const auto is_ready = [](uint32_t, const StagedPiece& each) {
    return each.state == StagedState::kReady;
  };
  EXPECT_EQ(one_.FindOldest(is_ready), second);
  table_.at(second).state = StagedState::kAtWorker;
  EXPECT_EQ(one_.FindOldest(is_ready), third);
  EXPECT_EQ(one_.FindAtWorker(3, 1), second);
  one_.FreeAllIn(StagedState::kReady);
  EXPECT_EQ(one_.count(), 1u);
}

using StagingDeathTest = Staging;

TEST_F(StagingDeathTest, APieceIsFreedOnceByItsOwner) {
  const uint32_t slot = Take();
  EXPECT_DEATH(other_.Free(slot), "by its owner");
  one_.Free(slot);
  EXPECT_DEATH(one_.Free(slot), "by its owner");
  EXPECT_DEATH(table_.Free(slot), "by its owner");
}

TEST_F(StagingDeathTest, APieceIsInOneTransferAtATime) {
  const uint32_t slot = Take();
  table_.BeginTransfer(slot, kRead);
  EXPECT_DEATH(table_.BeginTransfer(slot, kRead), "one transfer at a time");
  EXPECT_TRUE(table_.EndTransfer(slot));
  EXPECT_DEATH(table_.EndTransfer(slot), "ends once");
}

}  // namespace staging_table_test
}  // namespace tidepool::memserver
