// What memctl's changes would do, as --dry-run shows it, and which commands are changes.
#include "client/memctl/commands/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/memctl/commands/config_edit.h"
#include "tests/client/memctl/memctl_fixture.h"

namespace tidepool::client {
namespace memctl_changes_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

memserver::Snapshot WithNvme() {
  memserver::Snapshot snapshot = memserver::TwoJobs();
  snapshot.nvme.bytes = 16'384;
  snapshot.nvme.bytes_used = 4096;
  snapshot.jobs[1].pool_bytes = 3000;
  snapshot.jobs[1].chunks[0].spilled = true;
  snapshot.jobs[1].chunks_spilled = 1;
  return snapshot;
}

class MemctlChanges : public Memctl {
 protected:
  MemctlChanges() : Memctl(WithNvme()) { Serve(); }
  // Runs a command that changes something with --dry-run.
  std::string Dry(std::vector<const char*> words) {
    words.push_back("--dry-run");
    return ResultOf(words);
  }
  Status Refused(std::vector<const char*> words) {
    words.push_back("--dry-run");
    return Run(words).status();
  }
};

TEST_F(MemctlChanges, AReleaseIsToldWithItsNumbers) {
  EXPECT_EQ(Dry({"job", "release", "gpt", "--force"}),
            "release job gpt (number 3, training, 41 steps):\n"
            "   2 attached ranks ended\n"
            "   195 KiB (200000 bytes) of the pool given back\n"
            "   2.00 KiB (2048 bytes) of rCaches given back\n"
            "   its states are lost: nothing brings them back\n");
  EXPECT_THAT(Dry({"job", "release", "7"}),
              AllOf(HasSubstr("2.93 KiB (3000 bytes) of the pool"), Not(HasSubstr("rank"))));
  EXPECT_THAT(
      Dry({"job", "release", "7", "-o", "json"}),
      AllOf(
          StartsWith(
              R"x({"dry_run":true,"change":"release job 7 (number 5, detached, 0 steps)","effects":[")x"),
          HasSubstr(R"("ranks":0,"pool_bytes":3000,"nvme_bytes":0)")));
  EXPECT_EQ(Run({"job", "release", "7", "--dry-run"})->remark, "nothing was changed: --dry-run\n");
  EXPECT_TRUE(loop_.TakeCommands().empty()) << "nothing was sent";
}

TEST_F(MemctlChanges, ADryRunOfWhatIsRefusedIsTheRefusal) {
  const Status busy = Refused({"job", "release", "gpt"});
  EXPECT_EQ(busy.id(), ErrorId::kJobBusy);
  EXPECT_EQ(busy.why(), "2 of 2 ranks are attached");
  EXPECT_THAT(busy.fix(), HasSubstr("--force"));
  EXPECT_EQ(Refused({"job", "evict", "gpt"}).id(), ErrorId::kJobBusy);
  EXPECT_EQ(Refused({"job", "quota", "gpt"}).exit_code(), kExitUsage);
  EXPECT_EQ(Refused({"health", "mute", "NO_SUCH"}).exit_code(), kExitUsage);
  for (const char* action : {"release", "evict", "suspend", "resume", "quota"}) {
    EXPECT_EQ(Refused({"job", action, "none"}).exit_code(), kExitNotFound) << action;
  }
  EXPECT_TRUE(loop_.TakeCommands().empty());
}

TEST_F(MemctlChanges, WhatWouldHappenToJobsIsTold) {
  EXPECT_THAT(
      Dry({"job", "evict", "7"}),
      HasSubstr("the states of 1 chunk of 2 go to NVMe, which has 12.0 KiB (12288 bytes) free"));
  EXPECT_THAT(Dry({"job", "suspend", "gpt"}), HasSubstr("2 attached ranks served no longer"));
  EXPECT_THAT(Dry({"job", "resume", "gpt"}), HasSubstr("not suspended: nothing changes"));
  EXPECT_THAT(
      Dry({"job", "quota", "gpt", "--limit", "10KiB", "--nvme-limit", "0B"}),
      AllOf(HasSubstr("limit: none becomes 10KiB"), HasSubstr("nvme limit: none becomes 0B"),
            HasSubstr("one of its own, job:gpt")));
  EXPECT_THAT(Dry({"job", "quota", "gpt", "--weight", "3"}),
              AllOf(HasSubstr("weight: 1 becomes 3"), Not(HasSubstr("account"))));
  EXPECT_TRUE(loop_.TakeCommands().empty());
}

TEST_F(MemctlChanges, WhatWouldHappenToTheServerIsTold) {
  EXPECT_THAT(Dry({"drain", "--wait", "1h"}), AllOf(HasSubstr("2 jobs with 2 attached ranks go on"),
                                                    HasSubstr("2 ranks, at most 1h")));
  EXPECT_THAT(Dry({"undrain"}), HasSubstr("not drained: nothing changes"));
  EXPECT_THAT(Dry({"shutdown"}),
              AllOf(HasSubstr("2 jobs kept for the next memserver: 256 KiB (262144 bytes) of the "
                              "pool, 4.00 KiB (4096 bytes) on NVMe"),
                    Not(HasSubstr("lost"))));
  EXPECT_THAT(Dry({"shutdown", "--end-jobs"}),
              AllOf(HasSubstr("2 attached ranks ended"),
                    HasSubstr("job gpt ended (training, 41 steps): its states are lost"),
                    HasSubstr("job 7 ended (detached, 0 steps)")));
  EXPECT_THAT(Dry({"logs", "level", "debug", "--for", "10s"}),
              AllOf(HasSubstr("log to debug"), HasSubstr("for 10s")));
  EXPECT_THAT(Dry({"nvme", "scrub"}), HasSubstr("runs already"));
  EXPECT_THAT(Dry({"nvme", "tune"}), AllOf(HasSubstr("/mnt/a: some 15 s"), HasSubstr("/mnt/b: ")));
  EXPECT_THAT(Dry({"health", "mute", "LEASE_STALE"}),
              AllOf(HasSubstr("it says: warn"), HasSubstr("for 1h it counts for nothing")));
  EXPECT_TRUE(loop_.TakeCommands().empty());
  EXPECT_TRUE(loop_.TakeMainCommands().empty());
  EXPECT_THAT(Dry({"config", "reload"}), HasSubstr("log.level applied"));
  EXPECT_EQ(loop_.TakeMainCommands(), std::vector{memserver::MainCommand::What::kPlanReload})
      << "the server says what it would do";
}

TEST_F(MemctlChanges, TheWholeHealthIsToldAsItWouldBe) {
  const std::string muted = Dry({"health", "mute", "LEASE_STALE"});
  EXPECT_THAT(muted, HasSubstr("the health as a whole: warn becomes warn"))
      << "others stay: " << muted;
}

TEST(MemctlChangeWords, ChangesAloneTakeDryRunAndYes) {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"status"},
                                                {"health"},
                                                {"config", "show"},
                                                {"nvme", "status"},
                                                {"api", "GET", "/livez"}}) {
    for (const char* flag : {"--dry-run", "--yes"}) {
      std::vector<const char*> line = words;
      line.push_back(flag);
      EXPECT_EQ(Parse(line).exit_code, kExitUsage) << words[0];
      EXPECT_THAT(Parse(line).text, HasSubstr(flag));
    }
  }
  for (const std::vector<const char*>& words : {std::vector<const char*>{"drain"},
                                                {"undrain"},
                                                {"shutdown"},
                                                {"job", "release", "a"},
                                                {"logs", "level", "info"},
                                                {"health", "mute", "A"},
                                                {"health", "--unmute", "A"},
                                                {"config", "reload"}}) {
    std::vector<const char*> line = words;
    line.insert(line.end(), {"-y", "--dry-run"});
    ASSERT_TRUE(Parse(line).invocation.has_value()) << words[0];
    EXPECT_TRUE(Parse(line).invocation->yes && Parse(line).invocation->dry_run);
  }
}

TEST(MemctlChangeWords, WhatCannotBeTakenBackIsAskedFor) {
  const auto asks = [](const std::vector<const char*>& words) {
    return FindChange(*Parse(words).invocation)->asks;
  };
  EXPECT_TRUE(asks({"job", "release", "a"}));
  EXPECT_TRUE(asks({"job", "evict", "a"}));
  EXPECT_TRUE(asks({"shutdown"}));
  EXPECT_FALSE(asks({"drain"}));
  EXPECT_FALSE(asks({"job", "suspend", "a"}));
  EXPECT_FALSE(asks({"health", "mute", "A"}));
}

TEST(ConfigEdit, OneLineIsChangedAndAllOthersStay) {
  const std::string text = "# ours\n[pool]\nsize = \"8GiB\"  # half\n\n[limits] # few\njobs=4#x\n";
  EXPECT_EQ(EditedConfig(text, {"pool.size", "4GiB", 3})->text,
            "# ours\n[pool]\nsize = \"4GiB\"  # half\n\n[limits] # few\njobs=4#x\n");
  EXPECT_EQ(EditedConfig(text, {"limits.jobs", "5", 6})->text,
            "# ours\n[pool]\nsize = \"8GiB\"  # half\n\n[limits] # few\njobs= 5#x\n");
  auto added = EditedConfig(text, {"limits.sessions", "a\"b", 0});
  EXPECT_EQ(added->text,
            "# ours\n[pool]\nsize = \"8GiB\"  # half\n\n[limits] # few\nsessions = "
            "\"a\\\"b\"\njobs=4#x\n");
  EXPECT_EQ(added->line, 6u);
  auto section = EditedConfig(text, {"log.level", "info", 0});
  EXPECT_THAT(section->text, ::testing::EndsWith("jobs=4#x\n\n[log]\nlevel = \"info\"\n"));
  EXPECT_EQ(section->line, 9u);
  EXPECT_EQ(EditedConfig("", {"log.level", "info", 0})->text, "[log]\nlevel = \"info\"\n");
  EXPECT_EQ(EditedConfig("pool.size = '1GiB'", {"pool.size", "2GiB", 1})->text,
            "pool.size = \"2GiB\"\n");
}

TEST(ConfigEdit, WhatWouldBeGuessedIsRefused) {
  for (const char* text : {"pool = { size = \"1GiB\" }", "size = [\"a\"", "size = \"\"\"a",
                           "size = \"a", "size", "size = 1 2", "other = 1"}) {
    const Status refused = EditedConfig(text, {"pool.size", "2GiB", 1}).status();
    EXPECT_EQ(refused.exit_code(), kExitUsage) << text;
    EXPECT_EQ(refused.why(), text);
  }
  EXPECT_FALSE(EditedConfig("", {"pool.size", "2GiB", 7}).ok());
}

}  // namespace memctl_changes_test
}  // namespace tidepool::client
