// Ranks whose rCache is memory of a GPU, with whole processes over the stand-in for the CUDA driver
// (tests/fakes/fake_cuda): memserver, its keeper and thin trainers. Memory of that GPU faults when
// a CPU touches it, and copies take the time that a test says.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace gpu_test {

using Strings = std::vector<std::string>;

// The environment of a process on a machine with such a GPU.
Strings WithGpu(const Strings& more = {}) {
  Strings environment{"LD_LIBRARY_PATH=" TIDEPOOL_FAKE_CUDA_FOLDER};
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

// Number of processes killed in each of two tests; scripts/nightly asks for more.
int Kills() {
  const char* wanted = std::getenv("TIDEPOOL_GPU_KILLS");
  return wanted != nullptr ? std::atoi(wanted) : 4;
}
uint64_t Seed() {
  const char* wanted = std::getenv("TIDEPOOL_TEST_SEED");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 1;
}

class GpuProcesses : public DurableDaemon {
 protected:
  Process TrainOnGpu(const Strings& more = {}, const Strings& environment = {}) const {
    Strings all{"--device", "cuda"};
    all.insert(all.end(), more.begin(), more.end());
    return Train(all, WithGpu(environment));
  }
  static void ExpectRefused(ChildProcess* trainer, int exit_code, const std::string& text) {
    const auto ended = trainer->Wait(kLimit);
    ASSERT_TRUE(ended.has_value()) << trainer->Output();
    EXPECT_EQ(ended->exit_code, exit_code) << trainer->Output();
    EXPECT_NE(trainer->Output().find(text), std::string::npos) << trainer->Output();
  }
};

TEST_F(GpuProcesses, AJobHasTheSameBitsAsOnTheHostInEitherFormOfExport) {
  const std::string expected = UndisturbedHash();
  const Process server = Serve({}, WithGpu());
  for (const char* without : {"", "vmm"}) {
    const Process trainer =
        TrainOnGpu({"--pause-ms", "0"}, {"FAKE_CUDA_WITHOUT=" + std::string(without)});
    ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
    EXPECT_EQ(HashIn(trainer->Output()), expected);
  }
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
}

TEST_F(GpuProcesses, FrozenChunksAreSharedByJobsOnTheHostAndOnTheGpu) {
  const Process server = Serve({"--pool", "32MiB"}, WithGpu());
  const Process stays = Train({"--name", "host", "--frozen", "2", "--steps", "100000"});
  ASSERT_TRUE(stays->WaitForOutput("frozen put 32768", kLimit)) << stays->Output();
  const Process on_gpu = TrainOnGpu({"--name", "gpu", "--frozen", "2"});
  ASSERT_EQ(on_gpu->Wait(kLimit)->exit_code, 0) << on_gpu->Output();
  EXPECT_NE(on_gpu->Output().find("frozen put 0"), std::string::npos) << on_gpu->Output();
  const Process other =
      TrainOnGpu({"--name", "other", "--frozen", "2", "--frozen-seed", "2", "--steps", "4"});
  ASSERT_EQ(other->Wait(kLimit)->exit_code, 0) << other->Output();
  EXPECT_NE(other->Output().find("frozen put 32768"), std::string::npos) << other->Output();
}

TEST_F(GpuProcesses, AServerWithoutThatGpuRefusesByNameAndServesTheHost) {
  const Process server = Serve({}, WithGpu({"FAKE_CUDA_GPUS=0"}));
  ExpectRefused(TrainOnGpu().get(), 9, "TP2301");
  const Process on_host = Train({"--pause-ms", "0"});
  EXPECT_EQ(on_host->Wait(kLimit)->exit_code, 0) << on_host->Output();
}

TEST_F(GpuProcesses, TwoGpusServeTwoJobsAndAnUnknownOneIsNamedWithThoseThatThereAre) {
  const Process server = Serve({"--pool", "32MiB"}, WithGpu({"FAKE_CUDA_GPUS=2"}));
  const Process first = TrainOnGpu({"--name", "a"}, {"FAKE_CUDA_GPUS=2", "CUDA_VISIBLE_DEVICES=0"});
  const Process second =
      TrainOnGpu({"--name", "b"}, {"FAKE_CUDA_GPUS=2", "CUDA_VISIBLE_DEVICES=1"});
  ExpectRefused(TrainOnGpu({"--name", "c"}, {"FAKE_CUDA_GPUS=3", "CUDA_VISIBLE_DEVICES=2"}).get(),
                9, "it has ");
  ASSERT_EQ(first->Wait(kLimit)->exit_code, 0) << first->Output();
  ASSERT_EQ(second->Wait(kLimit)->exit_code, 0) << second->Output();
  EXPECT_EQ(HashIn(first->Output()), HashIn(second->Output()));
}

// Most kills of servers under one job: the keeper waits longer before each start.
constexpr int kKillsOfAServer = 4;

TEST_F(GpuProcesses, AServerKilledAmongItsCopiesIsReplacedUnderARunningRankWithTheSameBits) {
  const std::string expected = UndisturbedHash();
  SplitMix64 random(Seed());
  SteadyClock clock;
  for (int left = Kills(); left > 0; left -= kKillsOfAServer) {
    const int kills = std::min(left, kKillsOfAServer);
    const Process first = Serve({}, WithGpu({"FAKE_CUDA_SLOW_US=200"}));
    const Process trainer = TrainOnGpu({"--norms"});
    for (int i = 1; i <= kills; ++i) {
      ASSERT_TRUE(
          trainer->WaitForOutput("norm " + std::to_string(i * 56 / (kills + 1) + 1) + " ", kLimit))
          << trainer->Output();
      clock.SleepNs(static_cast<int64_t>(random.Next() % 5'000'000));
      const pid_t server = ServerPid();
      ASSERT_EQ(kill(server, SIGKILL), 0);
      const int64_t end = clock.NowNs() + kLimit;
      while (ServerPid() == server && clock.NowNs() < end) clock.SleepNs(kNsPerMs);
    }
    ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
    EXPECT_EQ(HashIn(trainer->Output()), expected) << "seed " << Seed();
    ASSERT_EQ(kill(ServerPid(), SIGINT), 0);
    ASSERT_TRUE(WaitForFilesToGo());
  }
}

// A context costs memory here, and processes share what the GPU has.
Strings SmallGpu(const TemporaryDirectory& directory) {
  return {"FAKE_CUDA_LEDGER=" + directory.path() + "/gpu-memory", "FAKE_CUDA_BYTES=67108864",
          "FAKE_CUDA_CONTEXT_BYTES=8388608"};
}

TEST_F(GpuProcesses, AKilledServerFindsRoomOnAGpuWhoseMemoryIsAllTaken) {
  const std::string expected = UndisturbedHash();
  const TemporaryDirectory memory;
  const Process first = Serve({}, WithGpu(SmallGpu(memory)));
  Strings environment = SmallGpu(memory);
  environment.insert(environment.end(), {"THIN_GPU_ROOM=8388608", "THIN_GPU_GROWS=1"});
  const Process trainer = TrainOnGpu({"--norms"}, environment);
  ASSERT_TRUE(trainer->WaitForOutput("norm 20 ", kLimit)) << trainer->Output();
  const pid_t server = ServerPid();
  ASSERT_EQ(kill(server, SIGKILL), 0);
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_NE(ServerPid(), server);
  EXPECT_EQ(HashIn(trainer->Output()), expected);
}

TEST_F(GpuProcesses, AHandOverGoesUnnoticed) {
  const std::string expected = UndisturbedHash();
  Process server = Serve({}, WithGpu());
  const Process trainer = TrainOnGpu({"--norms"});
  for (const char* step : {"norm 10 ", "norm 30 "}) {
    ASSERT_TRUE(trainer->WaitForOutput(step, kLimit)) << trainer->Output();
    HandOver(server.get());
    server = Serve({}, WithGpu());
  }
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
}

// Each is killed at another moment of its copies; the next one goes on from the last sealed step.
TEST_F(GpuProcesses, TrainersKilledAmongTheirCopiesLeaveNothingBehindAndChangeNoBits) {
  const std::string expected = UndisturbedHash();
  const Process server = Serve({}, WithGpu({"FAKE_CUDA_SLOW_US=300"}));
  const Process warm = TrainOnGpu({"--name", "warm", "--steps", "2"});
  ASSERT_EQ(warm->Wait(kLimit)->exit_code, 0) << warm->Output();
  ASSERT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
  const OpenDescriptors before = SettledDescriptorsOf(directory_.path());
  SplitMix64 random(Seed());
  SteadyClock clock;
  for (int kills = 0; kills < Kills();) {
    const Process trainer = TrainOnGpu({"--norms", "--persistent"});
    ASSERT_TRUE(trainer->WaitForOutput("norm ", kLimit) || trainer->Wait(0)) << trainer->Output();
    clock.SleepNs(static_cast<int64_t>(random.Next() % 50'000'000));
    trainer->Signal(SIGKILL);
    const auto ended = trainer->Wait(kLimit);
    ASSERT_TRUE(ended.has_value());
    kills += ended->signal == SIGKILL ? 1 : 0;
    if (ended->signal == SIGKILL) continue;
    // Few steps were left, or none: the next job begins anew.
    ASSERT_EQ(ended->exit_code, 0) << trainer->Output();
    EXPECT_EQ(HashIn(trainer->Output()), expected) << "seed " << Seed();
  }
  const Process last = TrainOnGpu({"--persistent"});
  ASSERT_EQ(last->Wait(kLimit)->exit_code, 0) << last->Output();
  EXPECT_EQ(HashIn(last->Output()), expected) << "seed " << Seed();
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
  const OpenDescriptors after = WaitForDescriptors(directory_.path(), before, kLimit);
  EXPECT_EQ(after, before) << before.Text() << "\nand then\n" << after.Text();
}

TEST_F(GpuProcesses, AFailedGpuEndsItsSessionsByNameAndOthersGoOn) {
  const std::string expected = UndisturbedHash();
  // A job on the host needs none of the GPU's calls.
  const Process server =
      Serve({"--pool", "32MiB"}, WithGpu({"FAKE_CUDA_FAIL=cuMemcpyAsync:200:700"}));
  const Process on_host = Train({"--name", "host"});
  const Process on_gpu = TrainOnGpu({"--name", "gpu", "--steps", "100000"});
  ExpectRefused(on_gpu.get(), 1, "TP2302");
  ExpectRefused(TrainOnGpu({"--name", "again"}).get(), 1, "TP2302");
  ASSERT_EQ(on_host->Wait(kLimit)->exit_code, 0) << on_host->Output();
  EXPECT_EQ(HashIn(on_host->Output()), expected);
  EXPECT_FALSE(server->Wait(0).has_value()) << server->Output();
}

// --- states that lie on the GPU ---

const Strings kStatesThere{"--states-on-gpu", "2"};

Strings With(Strings words, const Strings& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(GpuProcesses, StatesOnTheGpuGiveTheBitsOfTheHostAndAllOfItsMemoryBack) {
  const Process server = Serve({"--pool", "16MiB"}, WithGpu({"FAKE_CUDA_GPUS=2"}));
  const Process warm = TrainOnGpu(With(kStatesThere, {"--name", "warm", "--steps", "2"}));
  ASSERT_EQ(warm->Wait(kLimit)->exit_code, 0) << warm->Output();
  ASSERT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
  const OpenDescriptors before = SettledDescriptorsOf(directory_.path());
  const Process fp32 = TrainOnGpu(With(kStatesThere, {"--pause-ms", "0"}));
  ExpectDone(fp32.get(), UndisturbedHash());
  const Strings accumulating{"--bf16", "--micro-batches", "3", "--pause-ms", "0"};
  const Process on_host = Train(accumulating);
  ASSERT_EQ(on_host->Wait(kLimit)->exit_code, 0) << on_host->Output();
  const Process bf16 = TrainOnGpu(With(accumulating, kStatesThere));
  ExpectDone(bf16.get(), HashIn(on_host->Output()));
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
  const OpenDescriptors after = WaitForDescriptors(directory_.path(), before, kLimit);
  EXPECT_EQ(after, before) << "the keeper has let go: " << before.Text() << "\nand then\n"
                           << after.Text();
}

#ifdef TIDEPOOL_SANITIZED
// The other points run the same code, and no faster.
const Strings kStatesPoints{"server.gpu_unit_passed:20"};
#else
const Strings kStatesPoints{"server.gpu_share_ready",    "server.gpu_unit_begun:1",
                            "server.gpu_unit_begun:20",  "server.gpu_unit_passed:2",
                            "server.gpu_unit_passed:21", "server.gpu_piece_stored"};
#endif

TEST_F(GpuProcesses, AServerKilledAtAnyPointOfTheWayOfStatesOnTheGpuChangesNoBits) {
  const std::string expected = UndisturbedHash();
  for (const std::string& point : kStatesPoints) {
    const Process first = Serve({}, WithGpu({"TIDEPOOL_KILL_AT=" + point}));
    const Process trainer = TrainOnGpu(With(kStatesThere, {"--pause-ms", "1", "--persistent"}));
    const auto killed = first->Wait(kLimit);
    ASSERT_TRUE(killed.has_value()) << "nobody passed " << point << trainer->Output();
    EXPECT_EQ(killed->signal, SIGKILL);
    ExpectDone(trainer.get(), expected);
    EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing) << point;
    ASSERT_EQ(kill(ServerPid(), SIGINT), 0);
    ASSERT_TRUE(WaitForFilesToGo());
  }
}

// A detached job: nobody but the keeper holds its states while there is no server.
TEST_F(GpuProcesses, StatesOnTheGpuOutliveTrainerAndServerTogether) {
  const std::string expected = UndisturbedHash();
  Process server = Serve({"--no-respawn"}, WithGpu());
  {
    const Process killed = TrainOnGpu(With(kStatesThere, {"--norms", "--persistent"}));
    ASSERT_TRUE(killed->WaitForOutput("norm 10 ", kLimit)) << killed->Output();
    killed->Signal(SIGKILL);
    ASSERT_TRUE(killed->Wait(kLimit).has_value());
  }
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  server = Serve({"--no-respawn"}, WithGpu({"TIDEPOOL_KILL_AT=server.gpu_share_imported"}));
  ASSERT_TRUE(server->Wait(kLimit).has_value()) << server->Output();
  server = Serve({"--no-respawn"}, WithGpu());
  const Process next = TrainOnGpu(With(kStatesThere, {"--persistent"}));
  ExpectDone(next.get(), expected);
  EXPECT_EQ(next->Output().find("from 0\n"), std::string::npos) << next->Output();
}

TEST_F(GpuProcesses, AServerKilledAsItMakesAShareLeavesARankThatBeginsAnew) {
  const Process first = Serve({}, WithGpu({"TIDEPOOL_KILL_AT=server.gpu_share_made"}));
  const Process trainer = TrainOnGpu(With(kStatesThere, {"--pause-ms", "0"}));
  ASSERT_TRUE(first->Wait(kLimit).has_value());
  ASSERT_TRUE(trainer->Wait(kLimit).has_value());
  const Process again = TrainOnGpu(With(kStatesThere, {"--pause-ms", "0", "--persistent"}));
  ExpectDone(again.get(), UndisturbedHash());
}

TEST_F(GpuProcesses, StatesThatCannotLieOnTheGpuAreRefusedByName) {
  const Process server = Serve({}, WithGpu({"FAKE_CUDA_WITHOUT=vmm"}));
  ExpectRefused(TrainOnGpu(kStatesThere, {"FAKE_CUDA_WITHOUT=vmm"}).get(), 9, "TP2301");
  ExpectRefused(Train(kStatesThere).get(), 1, "they bring none");
}

TEST_F(GpuProcesses, UnderMpsTrainingGoesOnAndStatesOnTheGpuAreRefused) {
  const std::string expected = UndisturbedHash();
  const Process server = Serve({}, WithGpu({"FAKE_CUDA_MPS=1"}));
  ExpectDone(TrainOnGpu({"--pause-ms", "0"}, {"FAKE_CUDA_MPS=1"}).get(), expected);
  const Process refused = TrainOnGpu(kStatesThere, {"FAKE_CUDA_MPS=1"});
  ExpectRefused(refused.get(), 9, "TP2301");
  EXPECT_NE(refused->Output().find("Multi-Process Service"), std::string::npos)
      << refused->Output();
}

TEST_F(GpuProcesses, AFailedGpuEndsTheJobWhoseStatesLayThereByNameAndOthersGoOn) {
  const std::string expected = UndisturbedHash();
  const Process server =
      Serve({"--pool", "32MiB"}, WithGpu({"FAKE_CUDA_FAIL=cuMemcpyAsync:400:700"}));
  const Process on_host = Train({"--name", "host"});
  const Process on_gpu = TrainOnGpu(With(kStatesThere, {"--name", "gpu", "--steps", "100000"}));
  ExpectRefused(on_gpu.get(), 7, "TP3014");
  ASSERT_EQ(on_host->Wait(kLimit)->exit_code, 0) << on_host->Output();
  EXPECT_EQ(HashIn(on_host->Output()), expected);
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
}

}  // namespace gpu_test
}  // namespace tidepool::testing
