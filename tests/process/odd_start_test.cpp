// memserver in surroundings that nobody wants: closed standard descriptors, no umask, a locale that
// there is not, a full environment, a process namespace of its own. It serves, with the modes that
// it promises, and ends in order.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "shm/socket_path.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace odd_start_test {

constexpr int64_t kLimit = 30 * kNsPerSecond;

struct Odd {
  const char* name;
  const char* script;  // of sh; "$@" is the command
  std::vector<std::string> environment = {};
};

// Its own words may go nowhere, so it is asked by its socket.
bool WaitUntilReady(const std::string& socket_dir) {
  SteadyClock clock;
  const int64_t end = clock.NowNs() + kLimit;
  while (clock.NowNs() < end) {
    if (std::filesystem::exists(shm::AdminSocketPath(socket_dir)) &&
        HoldingsOf(socket_dir) == kNothing)
      return true;
    clock.SleepNs(10 * kNsPerMs);
  }
  return false;
}

mode_t ModeOf(const std::string& path) {
  struct stat about {};
  EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
  return about.st_mode & 0777U;
}

class OddStart : public ::testing::TestWithParam<Odd> {};

TEST_P(OddStart, ServesAndEndsInOrder) {
  const TemporaryDirectory directory;
  const std::string socket_dir = directory.path() + "/sockets";
  std::vector<std::string> command{"/bin/sh", "-c", GetParam().script, "sh"};
  for (const std::string& word : MemserverCommand(socket_dir)) command.push_back(word);
  ChildProcess server(command, GetParam().environment);
  ASSERT_TRUE(WaitUntilReady(socket_dir)) << server.Output();
  EXPECT_EQ(ModeOf(socket_dir), 0700U);
  EXPECT_EQ(ModeOf(shm::DataSocketPath(socket_dir)), 0600U);
  EXPECT_EQ(ModeOf(shm::AdminSocketPath(socket_dir)), 0600U);
  ChildProcess trainer(ThinCommand(socket_dir, {"--steps", "3"}));
  const auto trained = trainer.Wait(kLimit);
  EXPECT_TRUE(trained && trained->exit_code == 0) << trainer.Output();
  EXPECT_EQ(WaitForHoldings(socket_dir, kNothing, kPromptNs), kNothing);
  kill(FindServer(socket_dir), SIGTERM);
  const auto ended = server.Wait(kLimit);
  ASSERT_TRUE(ended.has_value()) << server.Output();
  EXPECT_EQ(ended->exit_code, 0) << server.Output();
}

// Descriptors 0 to 2 are what they always are, so that no line of the log is written into a socket.
TEST(OddStartDescriptors, OfAServerThatWasGivenNoneLeadNowhere) {
  const TemporaryDirectory directory;
  std::vector<std::string> command{"/bin/sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"};
  for (const std::string& word : MemserverCommand(directory.path())) command.push_back(word);
  ChildProcess server(command);
  ASSERT_TRUE(WaitUntilReady(directory.path()));
  // Nobody else sees the descriptors of a process that is not dumpable.
  for (int fd = 0; fd <= 2 && geteuid() == 0; ++fd) {
    const std::string link = "/proc/" + std::to_string(server.pid()) + "/fd/" + std::to_string(fd);
    EXPECT_EQ(std::filesystem::read_symlink(link), "/dev/null");
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(kLimit)->exit_code, 0);
}

std::vector<std::string> FullEnvironment() {
  std::vector<std::string> variables;
  for (int i = 0; i < 500; ++i)
    variables.push_back("TP_TEST_" + std::to_string(i) + "=" + std::string(1000, 'x'));
  return variables;
}

INSTANTIATE_TEST_SUITE_P(
    In, OddStart,
    ::testing::Values(
        Odd{"NoStandardDescriptors", "exec \"$@\" <&- >&- 2>&-"},
        Odd{"NoUmask", "umask 0; exec \"$@\""},
        Odd{"NoSuchLocale", "exec \"$@\"", {"LC_ALL=xx_YY.UTF-8", "LANG=tr_TR.ISO-8859-9"}},
        Odd{"NoSuchLibraryToPreload", "exec \"$@\"", {"LD_PRELOAD=/none/such.so"}},
        Odd{"AFullEnvironment", "exec \"$@\"", FullEnvironment()},
        Odd{"NoEnvironment", "exec /usr/bin/env -i \"$@\""}),
    [](const ::testing::TestParamInfo<Odd>& odd) { return std::string(odd.param.name); });

// In a process namespace of its own memserver sees no trainer's number: it is 0 there. The
// descriptor of the process that the kernel gives with the connection tells of its end all the
// same, as the connection does.
TEST(OddNamespace, AServerThatSeesNobodysNumberServesAndNoticesDeaths) {
  if (geteuid() != 0) return;  // who is not root makes no namespaces
  const TemporaryDirectory directory;
  std::vector<std::string> command{"/usr/bin/unshare", "--pid", "--fork", "--kill-child"};
  for (const std::string& word : MemserverCommand(directory.path())) command.push_back(word);
  ChildProcess server(command);
  const bool ready = WaitUntilReady(directory.path());
  if (server.Output().find("unshare failed") != std::string::npos) return;  // the system makes none
  ASSERT_TRUE(ready) << server.Output();
  ChildProcess trains(ThinCommand(directory.path(), {"--steps", "3"}));
  const auto trained = trains.Wait(kLimit);
  EXPECT_TRUE(trained && trained->exit_code == 0) << trains.Output();
  ChildProcess dies(ThinCommand(directory.path(), {"--steps", "100000", "--pause-ms", "1"}));
  SteadyClock clock;
  for (const int64_t end = clock.NowNs() + kLimit;
       HoldingsOf(directory.path()).sessions != 1 && clock.NowNs() < end;)
    clock.SleepNs(kNsPerMs);
  ASSERT_EQ(HoldingsOf(directory.path()).sessions, 1);
  dies.Signal(SIGKILL);
  EXPECT_EQ(WaitForHoldings(directory.path(), kNothing, kPromptNs), kNothing);
}

}  // namespace odd_start_test
}  // namespace tidepool::testing
