// Where the states of a job go, and that every byte of it is counted.
#include "memserver/residency/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/point.h"
#include "base/units.h"
#include "shm/spec/make_sums.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace placement_test {

shm::JobSpec Spec(DType dtype, uint32_t chunks = 4) {
  return MakeSpec({.dtype = dtype, .chunks = chunks, .chunk_elements = 300'000});
}

TEST(Spill, TheWorkedExampleOfTheFormatPageHolds) {
  const shm::JobSpec spec = Spec(DType::kBF16);
  EXPECT_EQ(shm::PieceOffset(spec, 0, 1), 3'149'824u);
  EXPECT_EQ(shm::SlotBytes(spec, 0), 3'608'576u);
  EXPECT_EQ(shm::SpilledChunkBytes(spec, 0), 7'217'152u);
}

TEST(Placement, TheHostTakesAllWhereItFits) {
  const shm::JobSpec spec = Spec(DType::kBF16);
  const uint64_t all = shm::StateBytesOf(spec).total();
  auto placed = PlaceStates(spec, StatesOn::kAuto, {all, {kGiB}});
  ASSERT_TRUE(placed.ok());
  EXPECT_FALSE(placed->spills());
  EXPECT_EQ(placed->host_bytes, all);
  EXPECT_EQ(placed->nvme_total(), 0u);
}

TEST(Placement, OneByteLessSpillsOneChunk) {
  const shm::JobSpec spec = Spec(DType::kBF16);
  const uint64_t all = shm::StateBytesOf(spec).total();
  auto placed = PlaceStates(spec, StatesOn::kAuto, {all - 1, {kGiB}});
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ(placed->first_spilled, 3u);
  EXPECT_EQ(placed->nvme_total(), shm::SpilledChunkBytes(spec, 3));
  EXPECT_EQ(placed->host_bytes, shm::HostStateBytesOf(spec, 3).total());
  EXPECT_LT(placed->host_bytes, all);
}

TEST(Placement, WhatTheHostKeepsIsWhatIsFetchedAndTheGradients) {
  const shm::StateBytes half = shm::HostStateBytesOf(Spec(DType::kBF16), 0);
  EXPECT_EQ(half.master + half.momentum + half.variance, 0u);
  EXPECT_GT(half.param16, 0u);
  const shm::StateBytes full = shm::HostStateBytesOf(Spec(DType::kF32), 0);
  EXPECT_GT(full.master, 0u);
  EXPECT_EQ(full.momentum + full.variance, 0u);
}

TEST(Placement, PolicyAndFormDecide) {
  shm::JobSpec spec = Spec(DType::kBF16);
  EXPECT_FALSE(PlaceStates(spec, StatesOn::kHost, {0, {kGiB}})->spills());
  EXPECT_EQ(PlaceStates(spec, StatesOn::kNvme, {kGiB, {kGiB}})->first_spilled, 0u);
  EXPECT_FALSE(PlaceStates(spec, StatesOn::kNvme, {kGiB, {}})->spills()) << "there is no directory";
  shm::JobSpec plain = Spec(DType::kF32);
  plain.optimizer.rule = OptimizerRule::kSgd;
  EXPECT_FALSE(PlaceStates(plain, StatesOn::kNvme, {kGiB, {kGiB}})->spills())
      << "it would leave its master on the host";
}

// Bytes of a piece of 37,856 elements: 64-byte planes, whole pages.
TEST(Spill, EveryFormHasItsPlacesInAPiece) {
  shm::JobSpec spec = Spec(DType::kBF16);
  constexpr uint64_t kElements = 37'856;
  spec.optimizer.states = StateForm::kSplit;
  const shm::SpilledPiece split = shm::SpilledPieceOf(spec, 0, kElements);
  EXPECT_EQ(split.high, 75'712u);
  EXPECT_EQ(split.momentum, 151'424u);
  EXPECT_EQ(split.variance, 302'848u);
  EXPECT_EQ(split.bytes, 454'656u) << "as fp32 states: 12 bytes a parameter";
  spec.optimizer.states = StateForm::kSplitBf16;
  EXPECT_EQ(shm::SpilledPieceOf(spec, 0, kElements).variance, 227'136u);
  EXPECT_EQ(shm::SpilledPieceOf(spec, 0, kElements).bytes, 303'104u);
  spec.optimizer.states = StateForm::kSplit8;
  const shm::SpilledPiece small = shm::SpilledPieceOf(spec, 0, kElements);
  EXPECT_EQ(small.momentum, 151'424u);
  EXPECT_EQ(small.variance, 151'424u + 37'888u + 4'736u)
      << "37,856 bytes up to 64, then 1,183 scales, up to 64 again";
  EXPECT_EQ(small.bytes, 237'568u);
  for (const StateForm form : {StateForm::kSplit, StateForm::kSplitBf16, StateForm::kSplit8}) {
    spec.optimizer.states = form;
    const shm::StateBytes host = shm::HostStateBytesOf(spec, 0);
    EXPECT_EQ(host.master + host.momentum + host.variance, 0u);
    EXPECT_LE(nvme::kPieceHeaderBytes + shm::SpilledPieceBytes(spec, 0, shm::kPieceElements),
              StateTier::kPieceBytesMax);
  }
}

TEST(Placement, ChunksAreStripedOverDirectoriesByRoom) {
  const shm::JobSpec spec = Spec(DType::kBF16);
  const uint64_t chunk = shm::SpilledChunkBytes(spec, 0);
  auto placed = PlaceStates(spec, StatesOn::kNvme, {kGiB, {2 * chunk, 2 * chunk}});
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ(placed->nvme_bytes, (std::vector<uint64_t>{2 * chunk, 2 * chunk}));
  EXPECT_NE(placed->DirectoryOf(0), placed->DirectoryOf(1));
  auto short_by_one = PlaceStates(spec, StatesOn::kNvme, {kGiB, {2 * chunk, 2 * chunk - 1}});
  EXPECT_EQ(short_by_one.status().id(), ErrorId::kNvmeFull);
  EXPECT_NE(short_by_one.status().what().find("two slots"), std::string::npos);
}

// As a server that has decoded it knows it.
shm::JobSpec WithSums(uint32_t chunks, uint64_t elements = 64) {
  shm::JobSpec spec =
      MakeSpec({.dtype = DType::kBF16, .chunks = chunks, .chunk_elements = elements});
  spec.sums.made = shm::MakeSums(spec);
  return spec;
}

// Directories that were chosen while it lives.
class Choices {
 public:
  Choices() {
    SetPointHook([this](const char* hit) {
      count_ += std::string_view(hit) == "server.directory_chosen" ? 1 : 0;
    });
  }
  ~Choices() { SetPointHook({}); }
  Choices(const Choices&) = delete;
  Choices& operator=(const Choices&) = delete;
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

TEST(Stripes, TheChoiceOfDirectoriesIsBoundedWhateverTheNumberOfChunks) {
  const shm::JobSpec spec = WithSums(5 * kStripesMax + 7);
  const Choices choices;
  auto placed = PlaceStates(spec, StatesOn::kNvme, {kGiB, {64 * kGiB, 64 * kGiB, 64 * kGiB}});
  ASSERT_TRUE(placed.ok());
  EXPECT_LE(choices.count(), kStripesMax);
  ASSERT_EQ(placed->directories.size(), spec.chunks.size());

  std::vector<uint64_t> bytes(3, 0);
  for (ChunkId id = 0; id < spec.chunks.size(); ++id)
    bytes[placed->DirectoryOf(id)] += shm::SpilledChunkBytes(spec, id);
  EXPECT_EQ(placed->nvme_bytes, bytes);
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most - *least, 6 * shm::SpilledChunkBytes(spec, 0)) << "no more than a stripe";
}

TEST(Stripes, OneIsAChunkWhereTheJobHasNoVeryManyOfThem) {
  const shm::JobSpec spec = WithSums(kStripesMax);
  auto placed = PlaceStates(spec, StatesOn::kNvme, {kGiB, {64 * kGiB, 64 * kGiB}});
  ASSERT_TRUE(placed.ok());
  for (ChunkId id = 0; id < spec.chunks.size(); ++id) ASSERT_EQ(placed->DirectoryOf(id), id % 2);
}

TEST(Stripes, TheLastRoomIsFoundInPartsOfAStripe) {
  const shm::JobSpec spec = WithSums(4 * kStripesMax);
  const uint64_t chunk = shm::SpilledChunkBytes(spec, 0), all = spec.chunks.size();
  const Choices choices;
  auto placed =
      PlaceStates(spec, StatesOn::kNvme, {kGiB, {(all / 2 + 1) * chunk, (all / 2 - 1) * chunk}});
  ASSERT_TRUE(placed.ok()) << "to the last chunk";
  EXPECT_LE(choices.count(), kStripesMax + 4);
  auto too_small =
      PlaceStates(spec, StatesOn::kNvme, {kGiB, {all / 2 * chunk, all / 2 * chunk - 1}});
  EXPECT_EQ(too_small.status().id(), ErrorId::kNvmeFull);
}

}  // namespace placement_test
}  // namespace tidepool::memserver
