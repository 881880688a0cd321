// Wrong use of the programs: every case ends with an error that says what, where and what to do,
// and with its documented exit code.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace bad_use_test {

constexpr int64_t kLimit = 20 * kNsPerSecond;

struct Expectation {
  int exit_code;
  std::vector<std::string> texts;
};

void ExpectEnd(ChildProcess* process, const Expectation& expected) {
  const auto end = process->Wait(kLimit);
  ASSERT_TRUE(end.has_value()) << "it did not end: " << process->Output();
  EXPECT_EQ(end->exit_code, expected.exit_code) << process->Output();
  for (const std::string& text : expected.texts) {
    EXPECT_NE(process->Output().find(text), std::string::npos)
        << "'" << text << "' is missing in:\n"
        << process->Output();
  }
}

void ExpectMemserver(const std::vector<std::string>& words, const Expectation& expected) {
  std::vector<std::string> command{TIDEPOOL_MEMSERVER};
  command.insert(command.end(), words.begin(), words.end());
  ChildProcess process(command);
  ExpectEnd(&process, expected);
}

class BadUse : public ::testing::Test {
 protected:
  std::string WriteConfig(const std::string& text) {
    const std::string path = directory_.path() + "/memserver.toml";
    std::ofstream(path) << text;
    return path;
  }
  const TemporaryDirectory directory_;
};

TEST_F(BadUse, ATrainerWithoutAServerSaysWhereItLookedAndWhatToStart) {
  ChildProcess trainer(ThinCommand(directory_.path(), {"--connect-timeout-ms", "100"}));
  ExpectEnd(&trainer,
            {kExitNoServer, {"TP3001", directory_.path() + "/data.sock", "memserver run"}});
}

TEST_F(BadUse, AServiceForAGroupThatIsNotThereSaysHowToMakeIt) {
  ExpectMemserver({"run", "--socket-dir", directory_.path(), "--mode", "service", "--group",
                   "no-such-group-here"},
                  {kExitUsage, {"TP1104", "no-such-group-here", "groupadd"}});
  ExpectMemserver({"run", "--socket-dir", directory_.path(), "--pool", "16MiB", "--keeper", "none",
                   "--metrics-listen", "0.0.0.0:9465"},
                  {kExitUsage, {"TP1104", "0.0.0.0:9465", "127.0.0.1"}});
}

TEST_F(BadUse, ASecondServerOnTheSameSocketsNamesTheFirst) {
  MemserverProcess first;
  ChildProcess second(MemserverCommand(first.socket_dir()));
  ExpectEnd(&second, {kExitFailed,
                      {"TP2003", "pid " + std::to_string(first.process().pid()), first.socket_dir(),
                       "--socket-dir"}});
  ChildProcess trainer(ThinCommand(first.socket_dir()));
  EXPECT_EQ(trainer.Wait(kLimit)->exit_code, 0) << "the first server must be unharmed";
}

TEST_F(BadUse, TheSocketsOfAKilledServerAreTakenOver) {
  ChildProcess first(MemserverCommand(directory_.path()));
  ASSERT_TRUE(first.WaitForOutput("ready", kLimit));
  first.Signal(SIGKILL);
  first.Wait(kLimit);
  ASSERT_TRUE(std::filesystem::exists(directory_.path() + "/data.sock"))
      << "a killed server cannot clean up";
  ChildProcess second(MemserverCommand(directory_.path()));
  EXPECT_TRUE(second.WaitForOutput("ready", kLimit)) << second.Output();
  ChildProcess trainer(ThinCommand(directory_.path()));
  EXPECT_EQ(trainer.Wait(kLimit)->exit_code, 0) << trainer.Output();
}

TEST_F(BadUse, APoolLargerThanTheMachineIsRefusedBeforeItIsTouched) {
  ChildProcess process(MemserverCommand(directory_.path(), {"--pool", "1000TiB"}));
  ExpectEnd(&process, {kExitHostMemory, {"TP2001", "--pool"}});
  EXPECT_FALSE(std::filesystem::exists(directory_.path() + "/data.sock"));
}

TEST_F(BadUse, AJobLargerThanThePoolIsRefusedWithTheNumbers) {
  MemserverProcess server({"--pool", "1MiB"});
  ChildProcess trainer(ThinCommand(server.socket_dir(), {"--chunks", "64"}));
  ExpectEnd(&trainer, {kExitRefused, {"TP2101", "MiB", "--pool"}});
  ChildProcess small(ThinCommand(server.socket_dir(), {"--chunks", "2"}));
  EXPECT_EQ(small.Wait(kLimit)->exit_code, 0) << small.Output();
}

TEST_F(BadUse, AnRcacheBeyondTheLimitIsRefusedWithTheNumbers) {
  MemserverProcess server({"--rcache-limit", "16KiB"});
  ChildProcess trainer(ThinCommand(server.socket_dir()));
  ExpectEnd(&trainer, {kExitRefused, {"TP2102", "--rcache"}});
}

TEST_F(BadUse, RanksThatDisagreeAboutTheirNumberAreRefused) {
  MemserverProcess server;
  ChildProcess first(ThinCommand(server.socket_dir(), {"--world", "2", "--rank", "0"}));
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + kLimit;
  while (HoldingsOf(server.socket_dir()).sessions != 1 && clock.NowNs() < limit)
    clock.SleepNs(kNsPerMs);
  ChildProcess second(ThinCommand(server.socket_dir(), {"--world", "4", "--rank", "1"}));
  ExpectEnd(&second, {kExitRefused, {"TP3013", "4 ranks; it was made for 2"}});
  ChildProcess third(
      ThinCommand(server.socket_dir(), {"--world", "2", "--rank", "1", "--chunks", "5"}));
  ExpectEnd(&third, {kExitRefused, {"TP3005", "--job"}});
  ChildProcess twice(ThinCommand(server.socket_dir(), {"--world", "2", "--rank", "0"}));
  ExpectEnd(&twice, {kExitRefused, {"TP3006"}});
}

TEST_F(BadUse, AServerThatIsKilledInMidRunIsNamedByItsTrainers) {
  MemserverProcess server;
  ChildProcess trainer(ThinCommand(server.socket_dir(), {"--steps", "1000000"}));
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + kLimit;
  while (NumberIn(AskAdmin(server.socket_dir(), "/v1/status"), "parameters_updated") <= 0 &&
         clock.NowNs() < limit)
    clock.SleepNs(kNsPerMs);
  server.process().Signal(SIGKILL);
  ExpectEnd(&trainer, {kExitJobKept, {"TP3009", server.socket_dir(), "memserver"}});
}

TEST_F(BadUse, AServerThatStopsInMidRunTellsItsTrainersAndEndsWithinTwoSeconds) {
  MemserverProcess server;
  ChildProcess trainer(ThinCommand(server.socket_dir(), {"--steps", "1000000"}));
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + kLimit;
  while (NumberIn(AskAdmin(server.socket_dir(), "/v1/status"), "parameters_updated") <= 0 &&
         clock.NowNs() < limit)
    clock.SleepNs(kNsPerMs);
  EXPECT_TRUE(server.StopsCleanly()) << server.process().Output();
  ExpectEnd(&trainer, {kExitFailed, {"TP3008", "stopping"}});
}

TEST_F(BadUse, MisspelledCommandsAndFlagsGetASuggestion) {
  ExpectMemserver({"chekc"}, {kExitUsage, {"TP1001", "did you mean \"check\""}});
  ExpectMemserver({"run", "--poool", "1GiB"}, {kExitUsage, {"TP1001", "did you mean \"--pool\""}});
  ExpectMemserver({"--poool=1GiB"}, {kExitUsage, {"did you mean \"--pool\""}});
  ExpectMemserver({"run", "stray"}, {kExitUsage, {"stray"}});
}

TEST_F(BadUse, BadValuesNameTheirSettingAndTheAcceptedForms) {
  ExpectMemserver({"config", "--pool", "lots"}, {kExitUsage, {"TP1104", "--pool", "lots"}});
  ExpectMemserver({"config", "--adam-threads", "0"},
                  {kExitUsage, {"TP1104", "--adam-threads", "1 to 256"}});
  ExpectMemserver({"config", "--isa", "v9"}, {kExitUsage, {"TP1104", "--isa"}});
  ExpectMemserver({"config", "--huge", "2M"}, {kExitUsage, {"TP1104", "auto, off"}});
  ExpectMemserver({"config", "--socket-dir", "relative"}, {kExitUsage, {"TP1104", "absolute"}});
}

TEST_F(BadUse, AConfigurationFileIsBlamedByLine) {
  const std::string unknown = WriteConfig("lease = \"1s\"\n[pool]\nsizee = \"1GiB\"\n");
  ExpectMemserver({"run", "--config", unknown},
                  {kExitUsage, {"TP1103", unknown + ":3", "did you mean \"pool.size\""}});
  const std::string syntax = WriteConfig("[pool\nsize = 3\n");
  ExpectMemserver({"run", "--config", syntax},
                  {kExitUsage, {"TP1102", "not valid TOML", syntax + ":1"}});
  const std::string value = WriteConfig("\n[optimizer]\nthreads = 1.5\n");
  ExpectMemserver({"run", "--config", value}, {kExitUsage, {"TP1104", value + ":3"}});
  ExpectMemserver({"run", "--config", "/nowhere.toml"}, {kExitUsage, {"TP1101", "/nowhere.toml"}});
}

TEST_F(BadUse, ASocketDirectoryThatOthersMayWriteToIsRefused) {
  const std::string open_directory = directory_.path() + "/open";
  std::filesystem::create_directory(open_directory);
  std::filesystem::permissions(open_directory, std::filesystem::perms::all);
  ChildProcess process(MemserverCommand(open_directory));
  ExpectEnd(&process, {kExitFailed, {"TP2004", open_directory, "chmod 700"}});
}

TEST_F(BadUse, ASocketPathThatIsTooLongIsRefused) {
  ChildProcess process(MemserverCommand("/tmp/" + std::string(120, 'x')));
  ExpectEnd(&process, {kExitFailed, {"TP2004", "107"}});
}

TEST_F(BadUse, CheckFindsAnUnfitHostAndChangesNothing) {
  const std::string sockets = directory_.path() + "/sockets";
  ExpectMemserver({"check", "--pool", "1000TiB", "--socket-dir", sockets},
                  {kExitHostUnfit, {"FAIL  memory", "smaller --pool"}});
  EXPECT_FALSE(std::filesystem::exists(sockets));
}

}  // namespace bad_use_test
}  // namespace tidepool::testing
