// When rates are measured, with time that a test moves; and what is measured, on the host.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "device/fingerprint.h"
#include "device/host/host_device.h"
#include "memserver/probe/measure_rates.h"
#include "memserver/probe/rates_process.h"
#include "memserver/rates_care.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::memserver {
namespace rates_test {

class Care : public ::testing::Test {
 protected:
  RatesMeasurer Measurer() {
    return {.start =
                [this] {
                  ++started_;
                  return fails_to_start_ ? Status(ErrorId::kKeeperFailed, "no process") : Status();
                },
            .ended = [this] { return ended_; },
            .stop = [this] { ++stopped_; }};
  }
  // Looks once a pause for so long.
  void Wait(RatesCare* care, int64_t ns, bool busy) {
    for (const int64_t end = clock_.NowNs() + ns; clock_.NowNs() < end && care->pause_ms() > 0;) {
      clock_.SleepNs(care->pause_ms() * kNsPerMs);
      care->Look(busy);
    }
  }

  FakeClock clock_;
  int started_ = 0, stopped_ = 0;
  bool fails_to_start_ = false;
  std::optional<bool> ended_;
};

TEST_F(Care, MeasuresOnceWhenThereHasBeenNoJobForAWhile) {
  RatesCare care(Measurer(), true, &clock_);
  Wait(&care, RatesCare::kQuietNs - 2 * RatesCare::kPauseNs, false);
  EXPECT_EQ(started_, 0);
  Wait(&care, 3 * RatesCare::kPauseNs, false);
  EXPECT_EQ(started_, 1);
  EXPECT_TRUE(care.measures());
  ended_ = true;
  Wait(&care, RatesCare::kPauseNs, false);
  EXPECT_TRUE(care.done());
  EXPECT_EQ(care.pause_ms(), -1) << "nothing is looked at any more";
  Wait(&care, 100 * RatesCare::kQuietNs, false);
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(stopped_, 0);
}

TEST_F(Care, AJobEndsItAtTheNextLookAndPutsItOff) {
  RatesCare care(Measurer(), true, &clock_);
  Wait(&care, 2 * RatesCare::kQuietNs, false);
  ASSERT_TRUE(care.measures());
  EXPECT_LE(care.pause_ms(), 25) << "no longer does a job share the machine";
  care.Look(/*busy=*/true);
  EXPECT_EQ(stopped_, 1);
  EXPECT_FALSE(care.measures());

  Wait(&care, 10 * RatesCare::kQuietNs, true);
  EXPECT_EQ(started_, 1) << "never beside a job";
  Wait(&care, 2 * RatesCare::kQuietNs + 2 * RatesCare::kPauseNs, false);
  EXPECT_EQ(started_, 2);
}

TEST_F(Care, NeverWhereItIsNotWanted) {
  RatesCare care(Measurer(), false, &clock_);
  EXPECT_EQ(care.pause_ms(), -1);
  for (int i = 0; i < 100; ++i) {
    clock_.SleepNs(RatesCare::kQuietNs);
    care.Look(false);
  }
  EXPECT_EQ(started_, 0);
}

TEST_F(Care, GivesUpAfterSomeFailures) {
  for (const bool at_start : {true, false}) {
    started_ = 0;
    fails_to_start_ = at_start;
    ended_ = false;
    RatesCare care(Measurer(), true, &clock_);
    Wait(&care, 100 * RatesCare::kQuietNs, false);
    EXPECT_EQ(started_, RatesCare::kTries);
    EXPECT_TRUE(care.done());
  }
}

TEST_F(Care, StopsWithItsOwner) {
  {
    RatesCare care(Measurer(), true, &clock_);
    Wait(&care, 2 * RatesCare::kQuietNs, false);
  }
  EXPECT_EQ(stopped_, 1);
}

TEST(MeasureRates, GivesRatesForEachNumberOfRanks) {
  device::HostDevice first({.clock = RealClock()}), second({.clock = RealClock()});
  RatesTask task;
  task.devices = {&first, &second};
  task.devices_update = true;  // the host's streams run Adam too
  task.scratch_bytes = 32 * kMiB;
  task.window_ns = 2 * kNsPerMs;
  auto rates = MeasureRates(task, *RealClock());
  ASSERT_TRUE(rates.ok()) << rates.status().Format();
  ASSERT_EQ(rates->size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    const MeasuredRates& one = rates.value()[i];
    EXPECT_EQ(one.ranks, i + 1);
    // No machine is slower or faster by a thousand.
    for (const double rate : {one.to_device_gb_per_s, one.from_device_gb_per_s}) {
      EXPECT_GT(rate, 0.01);
      EXPECT_LT(rate, 10'000);
    }
    for (const double rate :
         {one.host_update_g_elements_per_s, one.device_update_g_elements_per_s}) {
      EXPECT_GT(rate, 0.0001);
      EXPECT_LT(rate, 1'000);
    }
  }

  task.ends = [] { return true; };
  EXPECT_EQ(MeasureRates(task, *RealClock()).status().id(), ErrorId::kStepAbandoned);
}

TEST(MeasureRates, OrdersGoThroughACommandLine) {
  const RatesOrder order{.file = "/run/x y/rates.json", .workers = 7, .gpus = false};
  auto read = OrderOf(WordsOf(order));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->file, order.file);
  EXPECT_EQ(read->workers, 7u);
  EXPECT_FALSE(read->gpus);
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {}, {"f", "0", "gpus"}, {"f", "many", "gpus"}, {"f", "2", "all"}})
    EXPECT_EQ(OrderOf(bad).status().id(), ErrorId::kUsageError);
}

TEST(Fingerprint, NamesProcessorCpusAndMemory) {
  const std::filesystem::path folder = ::testing::TempDir() + "/proc";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "cpuinfo") << "processor\t: 0\nmodel name\t: Some CPU 9000\n";
  std::ofstream(folder / "meminfo") << "MemTotal:       25165000 kB\nMemFree: 1 kB\n";
  const std::string text = device::MachineFingerprint(folder);
  EXPECT_TRUE(text.starts_with("Some CPU 9000, ")) << text;
  EXPECT_NE(text.find(" CPUs, 24 GiB, "), std::string::npos) << text;
  EXPECT_EQ(text, device::MachineFingerprint(folder)) << "it does not change";
}

}  // namespace rates_test
}  // namespace tidepool::memserver
