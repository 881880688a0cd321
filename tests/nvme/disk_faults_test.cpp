// A disk that fails in every way it can: what is read is right, or it is refused by name. Wrong bytes that were believed: none.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "nvme/piece.h"
#include "nvme/transfer.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/sim_disk.h"
#include "tests/nvme/many_times.h"
#include "tests/nvme/sample_piece.h"

namespace tidepool::nvme {
namespace disk_faults_test {

constexpr uint32_t kPlaces = 6;

struct Tally {
  uint64_t reads = 0, writes = 0, right = 0, wrong = 0, refused = 0, failed = 0, repetitions = 0;
};

class FaultyDisk {
 public:
  FaultyDisk(uint64_t seed, uint32_t odds)
      : random_(seed), disk_(seed + 1, std::vector<uint64_t>{kPlaces * kSampleBytes}), transfers_(&disk_, &clock_, {4, kPageBytes}) {
    for (uint32_t fault = 0; fault < static_cast<uint32_t>(DiskFault::kCount); ++fault) disk_.Arm(static_cast<DiskFault>(fault), odds);
    // Often enough that some errors outlast their repetitions.
    disk_.Arm(DiskFault::kReadError, 6);
    disk_.Arm(DiskFault::kWriteError, 6);
  }

  void Step() {
    const auto place = static_cast<uint32_t>(random_.Below(kPlaces));
    if (epochs_[place] == 0 || random_.Below(3) == 0) {
      Write(place);
    } else {
      Read(place);
    }
  }
  const Tally& tally() const { return tally_; }
  const SimDisk& disk() const { return disk_; }

 private:
  PieceName NameOf(uint32_t place, uint64_t epoch) const {
    return {.store = 1, .job = 2, .chunk = place, .piece = 0, .epoch = epoch, .place = place * kSampleBytes};
  }
  int Move(IoKind kind, uint32_t place) {
    transfers_.Start({kind, 0, place * kSampleBytes, buffer_.data(), kSampleBytes, 0});
    TransferDone done;
    while (!transfers_.Next(&done)) {
      if (!transfers_.Progress()) clock_.Advance(kNsPerMs / 4);
    }
    tally_.repetitions += done.repetitions;
    if (done.error != 0) ++tally_.failed;
    return done.error;
  }
  // Epoch 0 of a place: nobody knows what lies there.
  void Write(uint32_t place) {
    ++tally_.writes;
    FillSample(NameOf(place, ++last_epoch_), buffer_.data());
    epochs_[place] = Move(IoKind::kWrite, place) == 0 ? last_epoch_ : 0;
  }
  void Read(uint32_t place) {
    ++tally_.reads;
    std::memset(buffer_.data(), 0x5a, buffer_.size());
    if (Move(IoKind::kRead, place) != 0) return;
    const PieceName name = NameOf(place, epochs_[place]);
    if (!VerifySample(name, buffer_.data())) {
      ++tally_.refused;
      epochs_[place] = 0;
      return;
    }
    std::vector<std::byte> expected(kSampleBytes);
    FillSample(name, expected.data());
    ++(std::memcmp(expected.data(), buffer_.data(), kSampleBytes) == 0 ? tally_.right : tally_.wrong);
  }

  SplitMix64 random_;
  FakeClock clock_;
  SimDisk disk_;
  TransferQueue transfers_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kSampleBytes);
  uint64_t epochs_[kPlaces] = {};
  uint64_t last_epoch_ = 0;
  Tally tally_;
};

TEST(DiskFaults, ManyAreRepairedOrNamedAndNoWrongByteIsBelieved) {
  const uint64_t faults = ManyTimes(50'000);
  FaultyDisk world(SeedOr(2026), 40);
  while (world.disk().faults() < faults) world.Step();
  const Tally& tally = world.tally();
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_GT(tally.right, tally.reads / 4);
  EXPECT_GT(tally.refused, faults / 500);
  EXPECT_GT(tally.failed, faults / 5000);
  EXPECT_GT(tally.repetitions, faults / 50);
  for (uint32_t fault = 0; fault < static_cast<uint32_t>(DiskFault::kSyncError); ++fault) {
    EXPECT_GT(world.disk().faults(static_cast<DiskFault>(fault)), faults / 500) << fault;
  }
}

TEST(DiskFaults, AHealthyDiskIsNeverAccused) {
  FakeClock clock;
  SimDisk disk(1, std::vector<uint64_t>{kSampleBytes});
  TransferQueue transfers(&disk, &clock, {4, kPageBytes});
  std::vector<std::byte> buffer(kSampleBytes);
  for (uint64_t epoch = 1; epoch < 2'000; ++epoch) {
    const PieceName name{.store = 1, .job = 2, .epoch = epoch};
    for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
      if (kind == IoKind::kWrite) FillSample(name, buffer.data());
      transfers.Start({kind, 0, 0, buffer.data(), kSampleBytes, 0});
      TransferDone done;
      while (!transfers.Next(&done)) transfers.Progress();
      ASSERT_EQ(done.error, 0);
    }
    ASSERT_TRUE(VerifySample(name, buffer.data()));
  }
}

}  // namespace disk_faults_test
}  // namespace tidepool::nvme
