// Whole processes with states on NVMe: killed with transfers in flight, and saved from there; the
// bits are those of a run on the host.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "nvme/page_memory.h"
#include "tests/nvme/deny_io_uring.h"
#include "tests/nvme/many_times.h"
#include "tests/nvme/scratch_directory.h"
#include "tests/process/rig/durable_daemon.h"

namespace tidepool::testing {
namespace nvme_kill_test {

#ifdef TIDEPOOL_SANITIZED
constexpr uint32_t kKillsWanted = 4;
constexpr const char* kSteps = "120";
#else
constexpr uint32_t kKillsWanted = 50;
constexpr const char* kSteps = "400";
#endif
constexpr uint32_t kBatchesMax = 12;  // of writes, in the life of a server

class NvmeProcesses : public DurableDaemon {
 protected:
  std::vector<std::string> OnNvme(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> flags = {"--no-respawn", "--nvme", nvme_.path() + ":64MiB",
                                      "--states-on", "nvme"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  static std::vector<std::string> Job(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--bf16", "--chunks", "6", "--elements", "40960"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  static void End(const Process& server) {
    server->Signal(SIGINT);
    const auto end = server->Wait(kLimit);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->exit_code, 0) << server->Output();
  }
  std::string HashOnHost(const std::vector<std::string>& more) const {
    const Process server = Serve();
    const Process trainer = Train(Job(more));
    EXPECT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
    const std::string hash = HashIn(trainer->Output());
    End(server);
    return hash;
  }
  // Until the job has sealed so many steps.
  bool WaitForSteps(int64_t steps) const {
    SteadyClock clock;
    for (const int64_t limit = clock.NowNs() + kLimit; clock.NowNs() < limit;
         clock.SleepNs(5 * kNsPerMs)) {
      if (NumberIn(AskAdmin(directory_.path(), "/v1/jobs"), "version") >= steps) return true;
    }
    return false;
  }
  static std::string FileIn(const std::string& directory) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      std::ifstream file(entry.path(), std::ios::binary);
      return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    }
    return "";
  }

  const nvme::ScratchDirectory nvme_;
};

// Just when the kernel has taken writes, at another batch of them each time; now and then at any
// time as well.
TEST_F(NvmeProcesses, AServerKilledWithTransfersInFlightChangesNoBit) {
  const std::string expected = HashOnHost({"--steps", kSteps});
  SplitMix64 random(nvme::SeedOr(6));
  const auto serve_until_killed = [&] {
    return Serve(OnNvme(), {"TIDEPOOL_KILL_AT=nvme.writes_out:" +
                            std::to_string(1 + random.Below(kBatchesMax))});
  };
  Process server = serve_until_killed();
  const Process trainer = Train(Job({"--steps", kSteps, "--pause-ms", "4", "--persistent"}));
  uint32_t kills = 0;
  for (; kills < kKillsWanted; ++kills) {
    const auto killed = server->Wait(kLimit);
    ASSERT_TRUE(killed.has_value()) << "no writes were begun any more after kill " << kills;
    ASSERT_EQ(killed->signal, SIGKILL) << server->Output();
    if (kills % 5 == 0) {  // and one at any time
      server = Serve(OnNvme());
      ASSERT_FALSE(trainer->Wait(static_cast<int64_t>(random.Below(25)) * kNsPerMs).has_value())
          << trainer->Output();
      server->Signal(SIGKILL);
      ASSERT_TRUE(server->Wait(kLimit).has_value());
    }
    server = serve_until_killed();
  }
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  server = Serve(OnNvme());
  const auto end = trainer->Wait(2 * kLimit);
  ASSERT_TRUE(end.has_value()) << trainer->Output();
  ASSERT_EQ(end->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  End(server);
}

TEST_F(NvmeProcesses, AServerKilledAtAnyPointOfAPieceChangesNoBit) {
  const std::string expected = HashOnHost({"--steps", "12"});
  for (const char* point : {"server.piece_staged:3", "server.piece_stored:4",
                            "server.piece_written:5", "server.piece_written:40"}) {
    Process server = Serve(OnNvme(), {std::string("TIDEPOOL_KILL_AT=") + point});
    const Process trainer = Train(Job({"--steps", "12", "--persistent"}));
    const auto killed = server->Wait(kLimit);
    ASSERT_TRUE(killed.has_value()) << "nobody passed " << point;
    EXPECT_EQ(killed->signal, SIGKILL);
    server = Serve(OnNvme());
    const auto end = trainer->Wait(kLimit);
    ASSERT_TRUE(end.has_value() && end->exit_code == 0) << point << "\n" << trainer->Output();
    EXPECT_EQ(HashIn(trainer->Output()), expected) << point;
    End(server);
  }
}

TEST_F(NvmeProcesses, WeightsAreSavedFromNvmeAndByThreadsWhereIoUringIsOff) {
  const TemporaryDirectory on_host, on_nvme;
  {
    const Process server = Serve();
    const Process trainer = Train(Job({"--steps", "5", "--save", on_host.path()}));
    ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
    End(server);
  }
  const Process server = Serve(OnNvme({"--nvme-io", "threads"}));
  EXPECT_TRUE(server->WaitForOutput("io_uring is switched off", kLimit)) << server->Output();
  const Process trainer = Train(Job({"--steps", "5", "--save", on_nvme.path()}));
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_FALSE(FileIn(on_host.path()).empty());
  EXPECT_EQ(FileIn(on_host.path()), FileIn(on_nvme.path()));
  End(server);
}

TEST_F(NvmeProcesses, WhereASeccompFilterDeniesIoUringThreadsServeAndALineSaysWhy) {
  const std::string expected = HashOnHost({"--steps", "5"});
  Process server;
  // The filter stays with this thread and the server that it starts.
  std::thread([&] {
    ASSERT_TRUE(nvme::DenyIoUring());
    server = Serve(OnNvme());
  }).join();
  EXPECT_TRUE(server->WaitForOutput("Operation not permitted", kLimit)) << server->Output();
  EXPECT_TRUE(server->WaitForOutput("threads with pread and pwrite", kLimit)) << server->Output();
  const Process trainer = Train(Job({"--steps", "5"}));
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  End(server);
}

// The kernel refuses what lies behind the limit (EFBIG): those pieces stay in the pool, also when
// the server is killed.
TEST_F(NvmeProcesses, WritesThatTheKernelRefusesLeaveTheStatesInThePoolOverAKillAndChangeNoBit) {
  const std::string expected = HashOnHost({"--steps", "60"});
  Process server = Serve(OnNvme());
  const Process trainer = Train(Job({"--steps", "60", "--pause-ms", "10", "--persistent"}));
  ASSERT_TRUE(WaitForSteps(3));
  const rlimit little{2 * kMiB + 512 * kKiB, RLIM_INFINITY};
  ASSERT_EQ(prlimit(server->pid(), RLIMIT_FSIZE, &little, nullptr), 0);
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + kLimit;
  while (NumberIn(AskAdmin(directory_.path(), "/v1/nvme"), "pieces_in_pool") < 6 &&
         clock.NowNs() < limit)
    clock.SleepNs(5 * kNsPerMs);
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  EXPECT_TRUE(server->WaitForOutput("they stay in the pool", kLimit)) << server->Output();
  EXPECT_TRUE(server->WaitForOutput("File too large", kLimit)) << server->Output();
  server = Serve(OnNvme());
  EXPECT_GE(NumberIn(AskAdmin(directory_.path(), "/v1/nvme"), "pieces_in_pool"), 6);
  const auto end = trainer->Wait(2 * kLimit);
  ASSERT_TRUE(end.has_value() && end->exit_code == 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  End(server);
}

// What is written on the medium of a running job changes: its next step ends by name, and the
// server goes on.
TEST_F(NvmeProcesses, StatesThatWereDamagedOnTheMediumEndTheJobByNameAndNotTheServer) {
  const Process server = Serve(OnNvme());
  const Process trainer = Train(Job({"--steps", "100000", "--pause-ms", "20"}));
  ASSERT_TRUE(WaitForSteps(3));
  // Directly, as the server's own: a page cache beside those makes flushes fail.
  const UniqueFd file(open((nvme_.path() + "/states").c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  auto trash = nvme::PageMemory::Map(8 * kMiB);
  ASSERT_TRUE(trash.ok());
  std::fill(trash->bytes().begin(), trash->bytes().end(), std::byte{'!'});
  std::optional<ProcessEnd> end;
  // In the middle of a step that has read all it needs, the next writes put it right again: then
  // once more.
  for (int i = 0; i < 100 && !end; ++i) {
    ASSERT_EQ(pwrite(file.get(), trash->bytes().data(), 8 * kMiB, 0),
              static_cast<ssize_t>(8 * kMiB));
    end = trainer->Wait(kLimit / 100);
  }
  ASSERT_TRUE(end.has_value()) << trainer->Output() << server->Output();
  EXPECT_EQ(end->exit_code, kExitCorrupt) << trainer->Output();
  EXPECT_NE(trainer->Output().find("TP2207"), std::string::npos) << trainer->Output();
  const Process next = Train(Job({"--steps", "3"}));
  ASSERT_EQ(next->Wait(kLimit)->exit_code, 0) << next->Output();
  End(server);
}

TEST_F(NvmeProcesses, DirectoriesThatCannotBeUsedKeepTheServerFromStartingAndTheReasonIsGiven) {
  namespace fs = std::filesystem;
  fs::create_directory(nvme_.path() + "/open");
  fs::permissions(nvme_.path() + "/open", fs::perms::all);
  fs::create_directory_symlink(nvme_.path(), nvme_.path() + "/link");
  struct Case {
    std::string directory, error;
    int exit_code;
    std::vector<std::string> texts;
  };
  const std::vector<Case> cases{
      {nvme_.path() + "/none:64MiB",
       "TP2202",
       kExitFailed,
       {"No such file", nvme_.path() + "/none"}},
      {nvme_.path() + "/open:64MiB",
       "TP2202",
       kExitFailed,
       {"can be entered by others", "chmod 0700"}},
      {nvme_.path() + "/link:64MiB", "TP2202", kExitFailed, {"symbolic link"}},
      {nvme_.path() + ":4096TiB", "TP2204", kExitRefused, {"has no room for 4096 TiB", "are free"}},
  };
  for (const Case& each : cases) {
    ChildProcess server({TIDEPOOL_MEMSERVER, "run", "--socket-dir", directory_.path(), "--pool",
                         "8MiB", "--nvme", each.directory});
    const auto end = server.Wait(kLimit);
    ASSERT_TRUE(end.has_value()) << each.directory;
    EXPECT_EQ(end->exit_code, each.exit_code) << server.Output();
    EXPECT_TRUE(server.WaitForOutput(each.error, kLimit)) << server.Output();
    for (const std::string& text : each.texts)
      EXPECT_TRUE(server.WaitForOutput(text, kLimit)) << text << "\n" << server.Output();
  }
}

TEST_F(NvmeProcesses,
       AServerThatIsNotGivenTheDirectoryOfAKeptJobDoesNotStartAndTheJobGoesOnWithTheNext) {
  const std::string expected = HashOnHost({"--steps", "60"});
  Process server = Serve(OnNvme());
  const Process trainer = Train(Job({"--steps", "60", "--pause-ms", "10", "--persistent"}));
  ASSERT_TRUE(WaitForSteps(3));
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  ChildProcess other({TIDEPOOL_MEMSERVER, "run", "--socket-dir", directory_.path(), "--pool",
                      "8MiB", "--keeper", "process", "--no-respawn"});
  const auto refused = other.Wait(kLimit);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->exit_code, kExitFailed) << other.Output();
  EXPECT_NE(other.Output().find("TP2209"), std::string::npos) << other.Output();
  EXPECT_NE(other.Output().find("has states on NVMe"), std::string::npos) << other.Output();
  server = Serve(OnNvme());
  const auto end = trainer->Wait(kLimit);
  ASSERT_TRUE(end.has_value() && end->exit_code == 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  End(server);
}

// Its job is told by name and waits for a server that has the directory again; the job beside it,
// on the host, notices nothing.
TEST_F(NvmeProcesses, ADirectoryThatIsGoneAtARestartStopsItsOwnJobsAlone) {
  const std::string expected = HashOnHost({"--steps", "60"});
  const std::vector<std::string> on_host{"--no-respawn", "--nvme", nvme_.path() + ":64MiB",
                                         "--states-on", "host"};
  const auto train = [this](const char* name) {
    Process trainer = Train(Job({"--name", name, "--steps", "60", "--pause-ms", "5", "--norms"}));
    EXPECT_TRUE(trainer->WaitForOutput("norm 3 ", kLimit)) << trainer->Output();
    trainer->Signal(SIGSTOP);  // in the middle of its run, whatever becomes of the server
    return trainer;
  };
  Process server = Serve(OnNvme());
  const Process spilled = train("spilled");
  HandOver(server.get());
  server = Serve(on_host);
  const Process plain = train("plain");
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());

  const std::string away = nvme_.path() + ".away";
  std::filesystem::rename(nvme_.path(), away);
  server = Serve(on_host);
  for (const Process* trainer : {&spilled, &plain}) (*trainer)->Signal(SIGCONT);
  const auto told = spilled->Wait(kLimit);
  ASSERT_TRUE(told.has_value()) << spilled->Output();
  EXPECT_EQ(told->exit_code, kExitFailed);
  for (const std::string& text : {std::string("TP2209"), std::string("(spilled)"), nvme_.path()})
    EXPECT_NE(spilled->Output().find(text), std::string::npos) << text << "\n" << spilled->Output();
  ExpectDone(plain.get(), expected);
  HandOver(server.get());

  std::filesystem::rename(away, nvme_.path());
  server = Serve(on_host);
  const Process heir = Train(Job({"--name", "spilled", "--steps", "60", "--persistent"}));
  ExpectDone(heir.get(), expected);
  EXPECT_EQ(heir->Output().find("from 0"), std::string::npos)
      << "it began anew: " << heir->Output();
  End(server);
}

TEST_F(NvmeProcesses, ASecondServerOnTheDirectoryIsToldOfTheFirst) {
  const Process server = Serve(OnNvme());
  const TemporaryDirectory other;
  ChildProcess second({TIDEPOOL_MEMSERVER, "run", "--socket-dir", other.path(), "--pool", "8MiB",
                       "--nvme", nvme_.path() + ":64MiB"});
  const auto end = second.Wait(kLimit);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, 1);
  EXPECT_NE(second.Output().find("TP2203"), std::string::npos) << second.Output();
  EXPECT_NE(second.Output().find(std::to_string(server->pid())), std::string::npos)
      << second.Output();
  End(server);
}

}  // namespace nvme_kill_test
}  // namespace tidepool::testing
