#include "trainer/advice/host_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/units.h"
#include "trainer/advice/limits/machine_fit.h"

namespace tidepool::trainer {
namespace host_fit_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kLeft = 256 * kMiB;  // memserver leaves that

MemoryBudget Here(uint64_t bytes) {
  return {.bytes_available = bytes, .bytes_total = bytes, .limited_by = "MemAvailable"};
}

RunOptions TenBillion() {
  RunOptions options;
  options.model.preset = "gpt2-10b";
  return options;
}

HostFit Judge(const RunOptions& options, uint64_t there, bool on_host = true, uint32_t world = 1) {
  auto plan = MakeRunPlan(options, world, 0, "estimate");
  EXPECT_TRUE(plan.ok()) << plan.status().Format();
  return JudgeHost(options, *plan, on_host, Here(there));
}

TEST(HostFit, IsYesExactlyWhereEverythingAndWhatStaysFreeIsThere) {
  const uint64_t bytes = Judge(TenBillion(), 0).bytes;
  EXPECT_GT(bytes, 140 * kGiB);
  EXPECT_TRUE(Judge(TenBillion(), bytes + kLeft).fits);
  EXPECT_FALSE(Judge(TenBillion(), bytes + kLeft - 1).fits);
  EXPECT_THAT(Judge(TenBillion(), bytes + kLeft).ways, IsEmpty());
}

TEST(HostFit, RanksOnGpusHaveTheirRcacheThere) {
  auto plan = MakeRunPlan(TenBillion(), 2, 0, "estimate");
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(Judge(TenBillion(), 0, true, 2).bytes - Judge(TenBillion(), 0, false, 2).bytes,
            2 * plan->rcache.bytes);
}

TEST(HostFit, NamesWhatWouldFitAndTheBytesWithIt) {
  const HostFit fit = Judge(TenBillion(), 100 * kGiB);
  ASSERT_FALSE(fit.ways.empty());
  for (const WayToFit& way : fit.ways) EXPECT_LE(way.bytes + kLeft, 100 * kGiB) << way.flags;

  // What it says is what the plan with those flags takes.
  RunOptions smaller = TenBillion();
  smaller.model.dtype = "bf16";
  smaller.optimizer.states = "split-8bit";
  const uint64_t bytes = Judge(smaller, 0).bytes;
  EXPECT_LT(bytes, 100 * kGiB);
  const std::string text = DescribeFit(fit);
  EXPECT_THAT(text, HasSubstr("fits      this machine: no: "));
  EXPECT_THAT(text,
              HasSubstr("would fit: --dtype bf16 --states split-8bit: " + FormatBytes(bytes)));
  EXPECT_THAT(text, HasSubstr("of NVMe (memserver run --nvme DIR:SIZE)"));
}

TEST(HostFit, WhereNothingFitsItNamesTheSmallest) {
  const HostFit fit = Judge(TenBillion(), kGiB);
  ASSERT_EQ(fit.ways.size(), 1U);
  EXPECT_THAT(DescribeFit(fit), HasSubstr("the smallest, too large too: "));
  EXPECT_THAT(DescribeFit(fit), Not(HasSubstr("would fit")));
}

TEST(HostFit, AWayOverADriveNeedsItsRoomToBeThere) {
  auto plan = MakeRunPlan(TenBillion(), 1, 0, "estimate");
  ASSERT_TRUE(plan.ok());
  const auto judge = [&](uint64_t free) {
    return JudgeHost(TenBillion(), *plan, true, Here(100 * kGiB), {"/mnt/drive", free});
  };
  const std::string large = DescribeFit(judge(1000 * kGiB)), small = DescribeFit(judge(kGiB));
  EXPECT_THAT(large, HasSubstr("of NVMe (memserver run --nvme DIR:SIZE)"));
  EXPECT_THAT(large, HasSubstr("the largest drive here: 1000 GiB free in /mnt/drive\n"));
  EXPECT_THAT(small, Not(HasSubstr("NVMe")));
  EXPECT_THAT(small, HasSubstr("would fit: --dtype bf16 --states split-8bit"));
}

TEST(HostFit, KnowsTheDrivesThatAreThere) {
  const DriveRoom none = LargestDrive("/nowhere");
  const DriveRoom all = LargestDrive();
  EXPECT_GE(all.bytes_free, none.bytes_free);
  EXPECT_EQ(all.path.empty(), all.bytes_free == 0);
}

TEST(HostFit, TheVerdictIsOfTheGpuAndTheBatchToo) {
  const HostFit fit{.bytes = kGiB, .there = Here(2 * kGiB), .drive = {}, .fits = true, .ways = {}};
  EXPECT_THAT(DescribeVerdict(fit, nullptr, nullptr, 8), HasSubstr("this machine: yes: "));

  RunLimits limits;
  limits.batch = 4;
  limits.room_name = "host memory";
  EXPECT_THAT(DescribeVerdict(fit, nullptr, &limits, 4), HasSubstr("this machine: yes: "));
  const std::string batch = DescribeVerdict(fit, nullptr, &limits, 8);
  EXPECT_THAT(batch, HasSubstr("this machine: no: the activations of --batch 8"));
  EXPECT_THAT(batch, HasSubstr("would fit: --batch 4\n"));

  GpuEstimate gpu;
  gpu.rank_bytes = 3 * kGiB;
  gpu.sharers = 2;
  EXPECT_THAT(DescribeVerdict(fit, &gpu, nullptr, 8), HasSubstr("no: no GPU is here"));
  gpu.now = {.free = 7 * kGiB, .total = 8 * kGiB};
  EXPECT_THAT(DescribeVerdict(fit, &gpu, nullptr, 8), HasSubstr("this machine: yes: "));
  gpu.now->free = 5 * kGiB;
  const std::string small = DescribeVerdict(fit, &gpu, nullptr, 8);
  EXPECT_THAT(small, HasSubstr("no: 6.00 GiB of a GPU are needed"));
  EXPECT_THAT(small, HasSubstr("5.00 GiB of 8.00 GiB are free"));
}

TEST(HostFit, APrivatePoolThatHasNoRoomIsOneErrorWithOneFix) {
  EXPECT_TRUE(CheckPrivatePool(kGiB, Here(kGiB + kLeft)).ok());
  const Status status = CheckPrivatePool(kGiB, Here(kGiB));
  EXPECT_EQ(status.id(), ErrorId::kHostMemoryShort);
  const std::string text = status.Format();
  EXPECT_THAT(text, HasSubstr("a pool of 1.00 GiB"));
  EXPECT_EQ(text.find("fix:"), text.rfind("fix:"));
}

}  // namespace host_fit_test
}  // namespace tidepool::trainer
