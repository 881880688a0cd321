// Reading the configuration again: what is applied, what is refused by name, and that nothing is
// applied when something is refused.
#include "memserver/reload.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"

namespace tidepool::memserver {
namespace reload_test {

constexpr uint64_t kPool = kGiB;

class ReloadPlan : public ::testing::Test {
 protected:
  ~ReloadPlan() override { std::filesystem::remove(file_); }
  LoadedConfig Load(const std::string& text) {
    std::ofstream(file_) << text;
    auto loaded = LoadConfig({file_, flags_, {}});
    EXPECT_TRUE(loaded.ok()) << loaded.status().Format();
    return std::move(loaded).value();
  }
  Result<ApplySettings> Plan(const std::string& before, const std::string& after) {
    const LoadedConfig now = Load(before);
    return PlanReload(now, Load(after), kPool);
  }
  std::vector<std::string> Changed(const std::string& before, const std::string& after) {
    auto plan = Plan(before, after);
    EXPECT_TRUE(plan.ok()) << plan.status().Format();
    return plan.ok() ? plan->changed : std::vector<std::string>();
  }

  const std::string file_ =
      ::testing::TempDir() + "tp-reload-" + std::to_string(getpid()) + ".toml";
  std::map<std::string, std::string> flags_;
};

using Keys = std::vector<std::string>;

TEST_F(ReloadPlan, WhatIsTheSameChangesNothing) {
  const std::string quota = "[[jobs.quota]]\nmatch = \"user:7\"\nlimit = \"1MiB\"\n";
  EXPECT_EQ(Changed("lease = \"9s\"\n" + quota,
                    "# moved down\n\nlease = \"9s\"\n[keeper]\nrespawn = \"on\"\n" + quota),
            Keys{})
      << "a default that is written down, and lines that have moved, say nothing new";
}

TEST_F(ReloadPlan, TakesEverySettingThatMayChange) {
  auto plan = Plan("",
                   "[log]\nlevel = \"debug\"\n[limits]\njobs = 3\n[nvme]\nstates_on = "
                   "\"host\"\n[jobs]\ndefault_quota = \"25%\"\n"
                   "[[jobs.quota]]\nmatch = \"user:7\"\nguarantee = \"50%\"\nweight = 2\n");
  ASSERT_TRUE(plan.ok()) << plan.status().Format();
  EXPECT_EQ(plan->changed, (Keys{"nvme.states_on", "jobs.default_quota", "log.level", "limits.jobs",
                                 "jobs.quota"}));
  EXPECT_EQ(plan->live.log_level, LogLevel::kDebug);
  EXPECT_EQ(plan->live.jobs_max, 3u);
  EXPECT_EQ(plan->live.states_on, StatesOn::kHost);
  EXPECT_EQ(plan->live.quota_fallback.limit, kPool / 4);
  ASSERT_EQ(plan->quotas.size(), 1u);
  EXPECT_EQ(plan->quotas[0].account, "user:7");
  EXPECT_EQ(plan->quotas[0].quota.guarantee, kPool / 2);
  EXPECT_EQ(plan->quotas[0].quota.weight, 2u);
  ASSERT_EQ(plan->config->quotas.size(), 1u);
  EXPECT_EQ(plan->config->quotas[0].origin, file_ + ":11");
}

TEST_F(ReloadPlan, NamesEverySettingThatNeedsARestart) {
  auto plan = Plan("[pool]\nsize = \"1GiB\"\n",
                   "lease = \"9s\"\n[pool]\nsize = \"2GiB\"\n[log]\nlevel = \"debug\"\n");
  EXPECT_EQ(plan.status().id(), ErrorId::kConfigNeedsRestart);
  EXPECT_EQ(plan.status().where(), file_);
  EXPECT_EQ(plan.status().why(), "pool.size = \"2GiB\" (" + file_ +
                                     ":3), it runs with \"1GiB\"; lease = \"9s\" (" + file_ +
                                     ":1), it runs with \"8h\"");
}

TEST_F(ReloadPlan, SettingsAreRefusedOrAppliedAsTheirTableSays) {
  for (const Setting& setting : Settings()) {
    LoadedConfig wanted = Load("");
    for (EffectiveSetting& each : wanted.settings) {
      if (each.setting == &setting) each.text = "another";
    }
    const ErrorId expected = setting.is_live ? ErrorId::kNone : ErrorId::kConfigNeedsRestart;
    EXPECT_EQ(PlanReload(Load(""), wanted, kPool).status().id(), expected) << setting.key;
  }
}

TEST_F(ReloadPlan, AFlagStillWinsOverTheFile) {
  flags_["--log-level"] = "warn";
  flags_["--pool"] = "1GiB";
  EXPECT_EQ(Changed("", "[log]\nlevel = \"debug\"\n[pool]\nsize = \"2GiB\"\n"), Keys{});
}

TEST_F(ReloadPlan, QuotasThatDoNotFitAreRefusedWithTheirPlace) {
  const auto plan = Plan(
      "", "[log]\nlevel = \"debug\"\n[[jobs.quota]]\nmatch = \"user:7\"\nguarantee = \"2GiB\"\n");
  EXPECT_EQ(plan.status().id(), ErrorId::kConfigBadValue);
  EXPECT_EQ(plan.status().where(), file_ + ":5");
}

}  // namespace reload_test
}  // namespace tidepool::memserver
