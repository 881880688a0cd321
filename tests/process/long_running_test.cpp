// A memserver started by hand, used as the README says: one run after the other, several at once,
// and back to its baseline each time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace long_running_test {

constexpr int64_t kLimit = 30 * kNsPerSecond;

// All ranks of a two-rank job; their outputs in order of rank, empty when one failed.
std::vector<std::unique_ptr<ChildProcess>> StartRun(const std::string& socket_dir,
                                                    const std::string& name,
                                                    const std::vector<std::string>& more = {
                                                        "--steps", "30"}) {
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (const char* rank : {"0", "1"}) {
    std::vector<std::string> options{"--name", name, "--world",         "2",
                                     "--rank", rank, "--micro-batches", "2"};
    options.insert(options.end(), more.begin(), more.end());
    ranks.push_back(std::make_unique<ChildProcess>(ThinCommand(socket_dir, options)));
  }
  return ranks;
}

std::vector<std::string> FinishRun(const std::vector<std::unique_ptr<ChildProcess>>& ranks) {
  std::vector<std::string> outputs;
  for (const auto& rank : ranks) {
    const auto end = rank->Wait(kLimit);
    EXPECT_TRUE(end && end->exit_code == 0) << rank->Output();
    outputs.push_back(rank->Output());
  }
  return outputs;
}

TEST(LongRunning, RunsOneAfterTheOtherAndTwoAtOnceAndIsEmptyAfterEach) {
  MemserverProcess server;
  const auto first = FinishRun(StartRun(server.socket_dir(), "first"));
  EXPECT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kLimit), kNothing);
  const auto second = FinishRun(StartRun(server.socket_dir(), "second"));
  EXPECT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kLimit), kNothing);
  const auto left = StartRun(server.socket_dir(), "left"),
             right = StartRun(server.socket_dir(), "right");
  const auto third = FinishRun(left), fourth = FinishRun(right);
  EXPECT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kLimit), kNothing);
  EXPECT_EQ(first, second);
  EXPECT_EQ(first, third);
  EXPECT_EQ(first, fourth);
  EXPECT_TRUE(server.StopsCleanly()) << server.process().Output();
}

TEST(LongRunning, TheSameBitsComeFromEverySettingOfTheServer) {
  std::vector<std::string> expected;
  const std::vector<std::vector<std::string>> settings{{},
                                                       {"--adam-threads", "2"},
                                                       {"--copy-threads", "1"},
                                                       {"--isa", "v2"},
                                                       {"--spin", "0ms"},
                                                       {"--copy-threads", "1", "--spin", "1ms"}};
  for (const auto& setting : settings) {
    MemserverProcess server(setting);
    const auto outputs = FinishRun(StartRun(server.socket_dir(), "bits"));
    if (expected.empty()) expected = outputs;
    EXPECT_EQ(outputs, expected) << (setting.empty() ? "" : setting[0]);
  }
}

// Shards that copy threads copy together, and chunks of several pieces, which several workers
// update.
TEST(LongRunning, TheSameBitsOfLargeChunksComeFromEveryNumberOfCopyThreads) {
  std::vector<std::string> expected;
  for (const char* copy_threads : {"0", "2", "3"}) {
    MemserverProcess server({"--pool", "96MiB", "--rcache-limit", "64MiB", "--adam-threads", "2",
                             "--copy-threads", copy_threads});
    const auto outputs = FinishRun(StartRun(
        server.socket_dir(), "large", {"--steps", "4", "--chunks", "1", "--elements", "2400000"}));
    if (expected.empty()) expected = outputs;
    EXPECT_EQ(outputs, expected) << copy_threads << " copy threads";
  }
}

TEST(LongRunning, WeightsAreSavedWhereTheTrainerSays) {
  MemserverProcess server;
  const TemporaryDirectory directory;
  ChildProcess trainer(
      ThinCommand(server.socket_dir(), {"--name", "saver", "--save", directory.path()}));
  ASSERT_EQ(trainer.Wait(kLimit)->exit_code, 0) << trainer.Output();
  const std::filesystem::path file = directory.path() + "/saver.safetensors";
  ASSERT_TRUE(std::filesystem::exists(file));
  EXPECT_GT(std::filesystem::file_size(file), 4 * 4096 * 4U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()),
                          std::filesystem::directory_iterator()),
            1)
      << "nothing but the file is left";
}

TEST(LongRunning, EndsWithTheProcessThatHoldsItsPipe) {
  const TemporaryDirectory directory;
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  UniqueFd read_end(pipe_ends[0]), write_end(pipe_ends[1]);
  ChildProcess server(
      MemserverCommand(directory.path(), {"--end-with-fd", std::to_string(read_end.get())}), {},
      {read_end.get()});
  ASSERT_TRUE(server.WaitForOutput("\"ready\"", kLimit)) << server.Output();
  EXPECT_FALSE(server.Wait(100 * kNsPerMs).has_value());
  write_end.Reset();
  const auto end = server.Wait(kPromptNs);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(LongRunning, EndsWithTheParentThatItIsToldOf) {
  const TemporaryDirectory directory;
  ChildProcess parent({"/bin/sleep", "60"});
  ChildProcess server(
      MemserverCommand(directory.path(), {"--parent-pid", std::to_string(parent.pid())}));
  ASSERT_TRUE(server.WaitForOutput("\"ready\"", kLimit)) << server.Output();
  parent.Signal(SIGKILL);
  const auto end = server.Wait(kPromptNs);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, 0);
}

TEST(LongRunning, TellsTheServiceManagerHowItStands) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/notify";
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ChildProcess server(MemserverCommand(directory.path() + "/s"), {"NOTIFY_SOCKET=" + path});
  ASSERT_TRUE(server.WaitForOutput("\"ready\"", kLimit)) << server.Output();
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.Wait(kLimit).has_value());
  std::string told;
  std::array<char, 1024> message{};
  for (ssize_t count = 0;
       (count = recv(socket.get(), message.data(), message.size(), MSG_DONTWAIT)) > 0;) {
    told += std::string(message.data(), static_cast<size_t>(count)) + ";";
  }
  EXPECT_NE(told.find("STATUS=touching pool"), std::string::npos) << told;
  EXPECT_NE(told.find("READY=1"), std::string::npos) << told;
  EXPECT_LT(told.find("READY=1"), told.find("STOPPING=1")) << told;
}

TEST(LongRunning, AFileOfDefaultsIsAcceptedAndChangesNothing) {
  const TemporaryDirectory directory;
  ChildProcess defaults({TIDEPOOL_MEMSERVER, "config", "--defaults"});
  ASSERT_EQ(defaults.Wait(kLimit)->exit_code, 0);
  const std::string file = directory.path() + "/memserver.toml";
  std::ofstream(file) << defaults.Output();
  ChildProcess plain({TIDEPOOL_MEMSERVER, "config"}),
      with_file({TIDEPOOL_MEMSERVER, "config", "--config", file});
  ASSERT_EQ(plain.Wait(kLimit)->exit_code, 0);
  ASSERT_EQ(with_file.Wait(kLimit)->exit_code, 0) << with_file.Output();
  EXPECT_NE(with_file.Output().find(file + ":"), std::string::npos) << "origins name the file";
  const auto value_of = [](const std::string& text, const std::string& key) {
    const size_t at = text.find("\n" + key + " = ");
    return text.substr(at, text.find('#', at) - at);
  };
  for (const char* key : {"lease", "size", "limit", "threads", "level"}) {
    EXPECT_EQ(value_of(plain.Output(), key), value_of(with_file.Output(), key));
  }
}

}  // namespace long_running_test
}  // namespace tidepool::testing
