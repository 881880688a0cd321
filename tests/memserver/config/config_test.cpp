#include "memserver/config/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "memserver/config/flags.h"
#include "memserver/host_check.h"
#include "memserver/probe/topology_report.h"

namespace tidepool::memserver {
namespace config_test {

class ConfigTest : public ::testing::Test {
 protected:
  Result<LoadedConfig> Load() {
    ConfigSources sources;
    sources.file = file_;
    sources.flags = flags_;
    sources.environment = [this](const std::string& name) { return environment_[name]; };
    return LoadConfig(sources);
  }
  void WriteFile(const std::string& text) {
    file_ = ::testing::TempDir() + "tp-config-test.toml";
    std::ofstream(file_) << text;
  }
  static std::string OriginOf(const LoadedConfig& loaded, std::string_view flag) {
    for (const EffectiveSetting& each : loaded.settings) {
      if (each.setting->flag == flag) return each.origin;
    }
    return "no such setting";
  }
  std::string file_;
  std::map<std::string, std::string> flags_, environment_;
};

TEST_F(ConfigTest, EveryDefaultIsValid) {
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  EXPECT_EQ(loaded.value().config.times.lease_ns, 8 * 3600 * kNsPerSecond);
  EXPECT_EQ(loaded.value().config.optimizer.threads, kAutomatic);
  EXPECT_EQ(loaded.value().config.times.spin_ns, -1);
  EXPECT_EQ(loaded.value().config.live.jobs_max, 64U);
  EXPECT_EQ(loaded.value().settings.size(), Settings().size());
}

// Tests of rooms below begin with the groups alone: they see the limits that users get.
TEST_F(ConfigTest, GroupsBeginWithTheLimitsOfTheTable) {
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  const Config& config = loaded.value().config;
  EXPECT_EQ(config.live, LiveSettings{});
  EXPECT_EQ(config.limits.sessions_max, LimitSettings{}.sessions_max);
  EXPECT_EQ(config.quota.fallback, QuotaSettings{}.fallback);
  EXPECT_EQ(config.nvme.deadline_ns, NvmeOptions{}.deadline_ns);
}

TEST_F(ConfigTest, AFlagWinsOverTheEnvironmentAndThatOverTheFile) {
  WriteFile("[pool]\nsize = \"1GiB\"\n[rcache]\nlimit = \"2GiB\"\n[optimizer]\nthreads = 3\n");
  environment_["TIDEPOOL_POOL"] = "4GiB";
  environment_["TIDEPOOL_RCACHE_LIMIT"] = "5GiB";
  flags_["--pool"] = "6GiB";
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  EXPECT_EQ(loaded.value().config.pool.size, "6GiB");
  EXPECT_EQ(loaded.value().config.rcache_limit, "5GiB");
  EXPECT_EQ(loaded.value().config.optimizer.threads, 3U);
  EXPECT_EQ(OriginOf(loaded.value(), "--pool"), "--pool");
  EXPECT_EQ(OriginOf(loaded.value(), "--rcache-limit"), "TIDEPOOL_RCACHE_LIMIT");
  EXPECT_EQ(OriginOf(loaded.value(), "--adam-threads"), file_ + ":6");
  EXPECT_EQ(OriginOf(loaded.value(), "--lease"), "default");
}

// toml++ runs into undefined behaviour on these (fz_config found it).
TEST_F(ConfigTest, LettersBeyondAsciiStandInStringsAndCommentsOnly) {
  WriteFile("# f\u00fcr die Tests\nsocket_dir = \"/tmp/\u03bb\"  # \u00b5\nlease = '9s'\n");
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  EXPECT_EQ(loaded.value().config.socket_dir, "/tmp/\u03bb");
  for (const char* line : {"m\u03bb = 1", "lease = 1\u00b5s", "lease = +T\"\"\"-\u03cc",
                           "lease = \"\"\"\\\n \u03bb\"\"\""}) {
    WriteFile(std::string("lease = \"1s\"\n") + line + "\n");
    const Status status = Load().status();
    EXPECT_EQ(status.id(), ErrorId::kConfigSyntax) << line;
    EXPECT_NE(status.Format().find(file_ + ":2"), std::string::npos) << status.Format();
  }
}

TEST_F(ConfigTest, WhatIsNoKeyIsASyntaxError) {
  for (const char* text : {"[\x01[\x0e", "[[[", "[[[x]]]", "[=]", "[["}) {
    WriteFile(text);
    const Status status = Load().status();
    EXPECT_EQ(status.id(), ErrorId::kConfigSyntax) << text;
    EXPECT_NE(status.Format().find(file_ + ":1"), std::string::npos) << status.Format();
  }
}

TEST_F(ConfigTest, SettingsThatArePrintedCanBeReadAgain) {
  environment_["TIDEPOOL_SOCKET_DIR"] = "/tmp/a \"b\" \\c";
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  WriteFile(PrintEffective(loaded.value()));
  environment_.clear();
  const auto again = Load();
  ASSERT_TRUE(again.ok()) << again.status().Format();
  EXPECT_EQ(again.value().config.socket_dir, "/tmp/a \"b\" \\c");
  environment_["TIDEPOOL_SOCKET_DIR"] = "/tmp/two\nlines";
  EXPECT_EQ(Load().status().id(), ErrorId::kConfigBadValue);
}

TEST_F(ConfigTest, AnEmptyFileSaysNothingAndADirectoryIsNoFile) {
  WriteFile("");
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  EXPECT_EQ(OriginOf(loaded.value(), "--pool"), "default");
  file_ = ::testing::TempDir();
  EXPECT_EQ(Load().status().id(), ErrorId::kConfigUnreadable);
}

TEST_F(ConfigTest, AnUnknownKeyIsNamedWithItsLineAndTheNearestOne) {
  WriteFile("lease = \"1s\"\n\n[log]\nlevle = \"info\"\n");
  const Status status = Load().status();
  EXPECT_EQ(status.id(), ErrorId::kConfigUnknownKey);
  EXPECT_NE(status.Format().find(file_ + ":4"), std::string::npos) << status.Format();
  EXPECT_NE(status.Format().find("log.level"), std::string::npos) << status.Format();
}

TEST_F(ConfigTest, ABadValueNamesWhereItCameFrom) {
  environment_["TIDEPOOL_LEASE"] = "soon";
  const Status status = Load().status();
  EXPECT_EQ(status.id(), ErrorId::kConfigBadValue);
  EXPECT_NE(status.Format().find("TIDEPOOL_LEASE"), std::string::npos) << status.Format();
}

TEST_F(ConfigTest, PrintedFilesAreAcceptedAgain) {
  flags_["--pool"] = "3GiB";
  flags_["--spin"] = "5ms";
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok());
  WriteFile(PrintEffective(loaded.value()));
  flags_.clear();
  const auto again = Load();
  ASSERT_TRUE(again.ok()) << again.status().Format();
  for (size_t i = 0; i < Settings().size(); ++i)
    EXPECT_EQ(again.value().settings[i].text, loaded.value().settings[i].text);
  WriteFile(PrintDefaults());
  EXPECT_TRUE(Load().ok());
}

TEST_F(ConfigTest, NvmeDirectoriesHaveAPathAndASizeEach) {
  flags_["--nvme"] = "/mnt/a:b:64MiB,/mnt/c:2GiB";
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  ASSERT_EQ(loaded.value().config.nvme.directories.size(), 2U);
  EXPECT_EQ(loaded.value().config.nvme.directories[0].path, "/mnt/a:b");
  EXPECT_EQ(loaded.value().config.nvme.directories[0].bytes, 64U << 20);
  EXPECT_EQ(loaded.value().config.nvme.directories[1].path, "/mnt/c");
  EXPECT_EQ(loaded.value().config.nvme.directories[1].bytes, uint64_t{2} << 30);
  flags_["--nvme"] = "none";
  EXPECT_TRUE(Load().value().config.nvme.directories.empty());
  for (const char* bad : {"", "/mnt/a", "mnt/a:1GiB", "/mnt/a:", "/mnt/a:much", "/mnt/a:1GiB,",
                          "/mnt/a:1GiB,/mnt/a:2GiB", "/mnt/a:4KiB"}) {
    flags_["--nvme"] = bad;
    EXPECT_EQ(Load().status().id(), ErrorId::kConfigBadValue) << bad;
  }
  flags_["--nvme"] = "none";
  for (const char* bad : {"0", "5000", "128MiB"}) {
    flags_["--nvme-block"] = bad;
    EXPECT_EQ(Load().status().id(), ErrorId::kConfigBadValue) << bad;
  }
  flags_["--nvme-block"] = flags_["--nvme-depth"] = "auto";
  EXPECT_EQ(Load().value().config.nvme.block_bytes, 0u);
  EXPECT_EQ(Load().value().config.nvme.depth, 0u);
  flags_["--nvme-block"] = "256KiB";
  flags_["--nvme-depth"] = "16";
  EXPECT_EQ(Load().value().config.nvme.block_bytes, 256 * kKiB);
  EXPECT_EQ(Load().value().config.nvme.depth, 16u);
}

TEST_F(ConfigTest, QuotasAreReadResolvedAndPrintedAgain) {
  WriteFile(
      "[jobs]\ndefault_quota = \"1GiB\"\n"
      "[[jobs.quota]]\nmatch = \"user:1234\"\nguarantee = \"1GiB\"\nlimit = \"50%\"\nnvme_limit = "
      "\"2GiB\"\nweight = 2\n"
      "[[jobs.quota]]\nmatch = \"job:gpt\"\npriority = \"high\"\n");
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  auto rules = ResolveQuotas(loaded->config.quota.entries, 8 * kGiB);
  ASSERT_TRUE(rules.ok()) << rules.status().Format();
  ASSERT_EQ(rules->size(), 2u);
  EXPECT_EQ((*rules)[0].account, "user:1234");
  EXPECT_EQ((*rules)[0].quota,
            (Quota{.guarantee = kGiB, .limit = 4 * kGiB, .nvme_limit = 2 * kGiB, .weight = 2}));
  EXPECT_EQ((*rules)[1].account, "job:gpt");
  EXPECT_EQ((*rules)[1].quota, (Quota{.priority = Priority::kHigh}));
  EXPECT_EQ(ResolveFallback("100%", kGiB)->limit, kNoLimit);
  EXPECT_EQ(ResolveFallback("50%", kGiB)->limit, kGiB / 2);
  WriteFile(PrintEffective(*loaded));
  auto again = Load();
  ASSERT_TRUE(again.ok()) << again.status().Format();
  EXPECT_EQ((*ResolveQuotas(again->config.quota.entries, 8 * kGiB))[0].quota, (*rules)[0].quota);
}

TEST_F(ConfigTest, ABadQuotaNamesItsLine) {
  const auto refused = [this](const std::string& body) {
    WriteFile("[[jobs.quota]]\n" + body + "\n");
    return Load().status();
  };
  EXPECT_EQ(refused("match = \"alice\"").id(), ErrorId::kConfigBadValue);
  EXPECT_EQ(refused("weight = 2").id(), ErrorId::kConfigBadValue) << "whose?";
  EXPECT_EQ(refused("match = \"job:a\"\nweight = 0").id(), ErrorId::kConfigBadValue);
  EXPECT_EQ(refused("match = \"job:a\"\npriority = \"top\"").id(), ErrorId::kConfigBadValue);
  EXPECT_EQ(refused("match = \"job:a\"\nnvme_limit = \"50%\"").id(), ErrorId::kConfigBadValue)
      << "of which drive?";
  const Status unknown = refused("match = \"job:a\"\nlimits = \"1GiB\"");
  EXPECT_EQ(unknown.id(), ErrorId::kConfigUnknownKey);
  EXPECT_NE(unknown.Format().find(":3"), std::string::npos) << unknown.Format();
  EXPECT_NE(unknown.Format().find("limit"), std::string::npos) << unknown.Format();
}

TEST_F(ConfigTest, QuotasThatCannotHoldAreRefusedAtStart) {
  const auto refused = [](std::vector<QuotaEntry> entries) {
    return CheckQuotas(entries, kGiB).id() == ErrorId::kConfigBadValue;
  };
  EXPECT_TRUE(refused(
      {{.match = "user:1", .guarantee = "600MiB"}, {.match = "user:2", .guarantee = "600MiB"}}));
  EXPECT_TRUE(refused({{.match = "user:1", .guarantee = "2GiB"}}));
  EXPECT_TRUE(refused({{.match = "user:1", .guarantee = "20MiB", .limit = "10MiB"}}));
  EXPECT_TRUE(refused({{.match = "user:1"}, {.match = "user:1"}}));
  EXPECT_TRUE(refused({{.match = "user:no-such-user-here"}}));
  EXPECT_FALSE(refused({{.match = "user:root"}, {.match = "user:1", .guarantee = "100%"}}));
}

TEST_F(ConfigTest, SettingsAreWellFormed) {
  std::set<std::string_view> flags, keys;
  for (const Setting& setting : Settings()) {
    EXPECT_TRUE(flags.insert(setting.flag).second) << setting.flag;
    EXPECT_TRUE(keys.insert(setting.key).second) << setting.key;
    EXPECT_TRUE(setting.flag.starts_with("--"));
    EXPECT_NE(HelpText().find(setting.flag), std::string::npos);
  }
  EXPECT_EQ(EnvironmentNameOf(Settings()[0]), "TIDEPOOL_SOCKET_DIR");
}

Result<Flags> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "memserver");
  return ParseFlags(static_cast<int>(words.size()), words.data());
}

TEST(FlagsTest, RunIsTheDefaultCommand) {
  EXPECT_EQ(Parse({}).value().command, Command::kRun);
  const auto flags = Parse({"--pool", "1GiB", "--end-with-fd=3"});
  ASSERT_TRUE(flags.ok()) << flags.status().Format();
  EXPECT_EQ(flags.value().command, Command::kRun);
  EXPECT_EQ(flags.value().settings.at("--pool"), "1GiB");
  EXPECT_EQ(flags.value().settings.size(), 1U);
  EXPECT_EQ(flags.value().end_with_fd, 3);
}

TEST(FlagsTest, EveryCommandIsUnderstoodAndHelpWinsEverywhere) {
  EXPECT_EQ(Parse({"check"}).value().command, Command::kCheck);
  EXPECT_EQ(Parse({"config", "--defaults"}).value().command, Command::kConfig);
  EXPECT_TRUE(Parse({"config", "--defaults"}).value().defaults);
  EXPECT_EQ(Parse({"version"}).value().command, Command::kVersion);
  EXPECT_EQ(Parse({"--version"}).value().command, Command::kVersion);
  EXPECT_EQ(Parse({"help"}).value().command, Command::kHelp);
  EXPECT_EQ(Parse({"-h"}).value().command, Command::kHelp);
  EXPECT_EQ(Parse({"check", "--help"}).value().command, Command::kHelp);
}

TEST(FlagsTest, HelpBeginsWithExamples) {
  const std::string text = HelpText();
  EXPECT_LT(text.find("examples:"), text.find("commands:"));
  EXPECT_LT(text.find("commands:"), text.find("settings"));
}

TEST(FlagsTest, WrongWordsAreUsageErrors) {
  for (const auto& words : std::vector<std::vector<const char*>>{{"serve"},
                                                                 {"--pol", "1"},
                                                                 {"run", "--pool"},
                                                                 {"run", "extra"},
                                                                 {"run", "--end-with-fd", "-3"},
                                                                 {"run", "--parent-pid", "x"}}) {
    const Status status = Parse(words).status();
    EXPECT_EQ(status.id(), ErrorId::kUsageError) << words.back();
    EXPECT_EQ(status.exit_code(), kExitUsage);
  }
}

TEST_F(ConfigTest, PlacesAreListsOrAutomatic) {
  WriteFile(
      "topology = \"/m.xml\"\n[pool]\nnodes = \"1,0\"\nspread = \"pieces\"\nhuge = "
      "\"reserved\"\n[optimizer]\ncpus = \"4-6\"\n");
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().Format();
  const Config& config = loaded.value().config;
  EXPECT_EQ(config.topology_file, "/m.xml");
  EXPECT_EQ(config.pool.nodes, (std::vector<uint32_t>{1, 0}));
  EXPECT_EQ(config.optimizer.cpus, (std::vector<uint32_t>{4, 5, 6}));
  EXPECT_EQ(config.pool.spread, device::PoolSpread::kPieces);
  EXPECT_TRUE(config.pool.huge_pages && config.pool.reserved_pages);
  flags_ = {{"--pool-nodes", "auto"}, {"--worker-cpus", "auto"}, {"--huge", "off"}};
  EXPECT_TRUE(Load().value().config.pool.nodes.empty() &&
              Load().value().config.optimizer.cpus.empty());
  EXPECT_FALSE(Load().value().config.pool.huge_pages || Load().value().config.pool.reserved_pages);
  flags_ = {{"--pool-nodes", "0,0"}};
  EXPECT_EQ(Load().status().id(), ErrorId::kConfigBadValue);
  EXPECT_NE(Load().status().Format().find("0-3,8"), std::string::npos);
}

TEST(TopologyReportTest, ShowsTheMachineThePlanAndWhereThePoolLies) {
  const device::Peripheral gpu{device::PeripheralKind::kGpu, "H200", "0000:16:00.0"};
  const device::Topology topology{
      .source = "a test",
      .nodes = {{.id = 0, .memory_bytes = 100, .cpus = {{0, 0}, {1, 1}}},
                {.id = 1, .memory_bytes = 200, .cpus = {{2, 2}}}},
      .roots = {{.name = "pci0000:15", .node = 1, .peripherals = {gpu}}}};
  const device::PlaceWishes wishes{.pool_nodes = {}, .worker_cpus = {}, .workers = 2};
  const auto places = device::PlanPlaces(topology, wishes);
  ASSERT_TRUE(places.ok());
  PoolFacts pool;
  pool.nodes = {{0, 30}, {1, 10}};
  EXPECT_EQ(
      TopologyReport(topology, places.value(), &pool),
      R"({"source":"a test","nodes":[{"id":0,"cpus":"0-1","memory_bytes":100,"pool_bytes":30,"workers":1},)"
      R"({"id":1,"cpus":"2","memory_bytes":200,"pool_bytes":10,"workers":1}],)"
      R"("root_complexes":[{"name":"pci0000:15","node":1,"devices":[{"kind":"gpu","name":"H200","address":"0000:16:00.0"}]}],)"
      R"("plan":{"pool_nodes":[0,1],"pool_spread":"interleave","worker_cpus":[1,2],)"
      R"("staging":[{"gpu":"0000:16:00.0","root_complex":"pci0000:15","node":1,)"
      R"("nearest":true}]}})");
  EXPECT_EQ(PlacesLine(topology, places.value()),
            "2 NUMA nodes (a test), pool interleaved on 0-1, workers on CPUs 1-2, staging of "
            "0000:16:00.0 on node 1");
}

TEST(HostCheckTest, TheWorstFindingMakesTheExitCode) {
  EXPECT_EQ(ExitCodeOf({}), kExitOk);
  EXPECT_EQ(ExitCodeOf({{Verdict::kOk, "a", "", ""}}), kExitOk);
  EXPECT_EQ(ExitCodeOf({{Verdict::kWarn, "a", "", "x"}, {Verdict::kOk, "b", "", ""}}), kExitFailed);
  EXPECT_EQ(ExitCodeOf({{Verdict::kFail, "a", "", "x"}, {Verdict::kWarn, "b", "", "y"}}),
            kExitHostUnfit);
}

TEST(HostCheckTest, EveryFindingThatIsNotFineNamesARemedy) {
  ServerOptions options;
  options.settings.socket_dir = "/" + std::string(200, 'x');
  options.pool_bytes = uint64_t{1} << 60;
  options.settings.limits.sessions_max = 100'000'000;
  const auto findings = CheckHost(options);
  EXPECT_EQ(ExitCodeOf(findings), kExitHostUnfit);
  for (const Finding& finding : findings)
    EXPECT_EQ(finding.verdict == Verdict::kOk, finding.remedy.empty()) << finding.subject;
}

}  // namespace config_test
}  // namespace tidepool::memserver
