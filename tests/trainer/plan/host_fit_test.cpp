#include "trainer/advice/host_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/units.h"

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
  EXPECT_THAT(text, HasSubstr("fits      no: "));
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
