// A disk that fails in every way it can: what is read is right, or it is refused by name. Wrong
// bytes that were believed: none.
#include <gtest/gtest.h>

#include <vector>

#include "base/units.h"
#include "nvme/transfer.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/sim_disk.h"
#include "tests/nvme/many_times.h"
#include "tests/nvme/places_under_faults.h"

namespace tidepool::nvme {
namespace disk_faults_test {

TEST(DiskFaults, ManyAreRepairedOrNamedAndNoWrongByteIsBelieved) {
  const uint64_t faults = ManyTimes(50'000), seed = SeedOr(2026);
  FakeClock clock;
  SimDisk disk(seed + 1, std::vector<uint64_t>{kPlaces * kSampleBytes});
  for (uint32_t fault = 0; fault < static_cast<uint32_t>(DiskFault::kCount); ++fault)
    disk.Arm(static_cast<DiskFault>(fault), 40);
  // Often enough that some errors outlast their repetitions.
  disk.Arm(DiskFault::kReadError, 6);
  disk.Arm(DiskFault::kWriteError, 6);
  PlacesUnderFaults world(seed, &disk, &clock, [&clock] { clock.Advance(kNsPerMs / 4); });
  while (disk.faults() < faults) world.Step();
  const Tally& tally = world.tally();
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_GT(tally.right, tally.reads / 4);
  EXPECT_GT(tally.refused, faults / 500);
  EXPECT_GT(tally.failed, faults / 5000);
  EXPECT_GT(tally.repetitions, faults / 50);
  for (uint32_t fault = 0; fault < static_cast<uint32_t>(DiskFault::kSyncError); ++fault) {
    EXPECT_GT(disk.faults(static_cast<DiskFault>(fault)), faults / 500) << fault;
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
