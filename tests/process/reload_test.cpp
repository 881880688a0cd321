// A memserver that runs reads its configuration again: by SIGHUP and by memctl; what it applies,
// what it refuses, and what the log says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace reload_test {

constexpr int64_t kLimit = 20 * kNsPerSecond;

class Reload : public ::testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(file_) << text; }
  std::string Admin(const std::string& path) const { return AskAdmin(server_.socket_dir(), path); }
  // memctl config reload: exit code, output.
  std::pair<int, std::string> ByMemctl() const {
    ChildProcess memctl({TIDEPOOL_MEMCTL, "-s", server_.socket_dir(), "config", "reload"});
    const auto end = memctl.Wait(kLimit);
    return {end ? end->exit_code : -1, memctl.Output()};
  }
  std::string Caller() const {
    return "\"uid\":" + std::to_string(geteuid()) + ",\"pid\":" + std::to_string(getpid());
  }

  const TemporaryDirectory directory_;
  const std::string file_ = directory_.path() + "/memserver.toml";
  const bool written_ = (Write("[log]\nlevel = \"info\"\n"), true);
  MemserverProcess server_{{"--config", file_}};
};

TEST_F(Reload, SighupAppliesTheFileAndTheLogSaysWhatAndWhoseItIs) {
  Write(
      "[log]\nlevel = \"debug\"\n[limits]\njobs = 5\n[[jobs.quota]]\nmatch = \"user:7\"\nlimit = "
      "\"1MiB\"\n");
  server_.process().Signal(SIGHUP);
  ASSERT_TRUE(
      server_.process().WaitForOutput("\"change\":\"reload: log.level, limits.jobs, jobs.quota\"," +
                                          Caller() + ",\"result\":\"done\"",
                                      kLimit))
      << server_.process().Output();
  EXPECT_NE(Admin("/v1/config/diff")
                .find("{\"key\":\"limits.jobs\",\"value\":\"5\",\"origin\":\"" + file_ +
                      ":4\",\"default\":\"64\""),
            std::string::npos)
      << Admin("/v1/config/diff");
  EXPECT_NE(Admin("/v1/quotas")
                .find("\"account\":\"user:7\",\"guarantee_bytes\":0,\"limit_bytes\":1048576"),
            std::string::npos);
  EXPECT_TRUE(server_.StopsCleanly()) << server_.process().Output();
}

TEST_F(Reload, WhatNeedsARestartIsRefusedByNameAndNothingIsApplied) {
  Write("lease = \"9s\"\n[log]\nlevel = \"debug\"\n[keeper]\nrespawn = \"off\"\n");
  const auto [exit_code, output] = ByMemctl();
  EXPECT_EQ(exit_code, kExitRefused) << output;
  EXPECT_NE(output.find("TP1105"), std::string::npos) << output;
  EXPECT_NE(output.find("a memserver that runs cannot change"), std::string::npos) << output;
  EXPECT_NE(output.find("keeper.respawn = \"off\" (" + file_ + ":5), it runs with \"on\""),
            std::string::npos)
      << output;
  EXPECT_EQ(output.find("lease"), std::string::npos)
      << "that is a flag of this server, which wins over the file: " << output;
  EXPECT_EQ(Admin("/v1/config").find("debug"), std::string::npos) << "nothing is applied";
  EXPECT_NE(server_.process().Output().find("\"message\":\"the configuration was not reloaded\""),
            std::string::npos);
}

TEST_F(Reload, AFileThatIsWrongOrGoneChangesNothingAndTheServerGoesOn) {
  Write("[log]\nlevle = \"debug\"\n");
  EXPECT_EQ(ByMemctl().first, kExitUsage);
  EXPECT_NE(ByMemctl().second.find(file_ + ":2"), std::string::npos);
  unlink(file_.c_str());
  server_.process().Signal(SIGHUP);
  ASSERT_TRUE(server_.process().WaitForOutput("TP1101", kLimit)) << server_.process().Output();
  Write("[log]\nlevel = \"warn\"\n");
  const auto [exit_code, output] = ByMemctl();
  EXPECT_EQ(exit_code, kExitOk) << output;
  EXPECT_NE(output.find("applied: log.level"), std::string::npos) << output;
  EXPECT_NE(ByMemctl().second.find("nothing is different"), std::string::npos);
}

}  // namespace reload_test
}  // namespace tidepool::testing
