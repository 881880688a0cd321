// A memserver that was killed and does not end, because a thread of it waits for a file system that
// does not answer, while a GPU still copies for it: the next one serves all jobs but those that it
// copied for, and takes these up when it has ended. The GPU is the stand-in for the CUDA driver
// (tests/fakes/fake_cuda), whose copies go on when the process that began them has been killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/fakes/silent_files.h"
#include "tests/not_run.h"
#include "tests/process/rig/durable_daemon.h"

namespace tidepool::testing {
namespace former_server_test {

using Strings = std::vector<std::string>;

class FormerServer : public DurableDaemon {
 protected:
  void SetUp() override {
    files_ = std::make_unique<SilentFiles>(geteuid());
    if (!files_->missing().empty()) NotRun(files_->missing());
  }
  void TearDown() override {
    files_.reset();  // only now can a server end that waits for an answer
    DurableDaemon::TearDown();
  }
  bool CanRun() const { return files_->missing().empty(); }
  Strings WithGpu(const Strings& more = {}) const {
    Strings environment{"LD_LIBRARY_PATH=" TIDEPOOL_FAKE_CUDA_FOLDER, "FAKE_CUDA_SLOW_US=300"};
    environment.insert(environment.end(), more.begin(), more.end());
    return environment;
  }
  std::string late() const { return scratch_.path() + "/late"; }
  Process TrainOnGpu(Strings flags) const {
    flags.insert(flags.end(), {"--device", "cuda", "--server-timeout-ms", "60000"});
    return Train(flags, {"LD_LIBRARY_PATH=" TIDEPOOL_FAKE_CUDA_FOLDER});
  }
  static bool WaitFor(const std::function<bool()>& condition) {
    SteadyClock clock;
    for (const int64_t end = clock.NowNs() + kLimit; !condition();) {
      if (clock.NowNs() > end) return false;
      clock.SleepNs(kNsPerMs);
    }
    return true;
  }
  // The first server may have ended; others write where it did.
  static bool WaitForSuccessor(ChildProcess* server, const std::string& text) {
    return WaitFor([&] { return server->Output().find(text) != std::string::npos; });
  }
  // Its trainer ends; the thread that writes for it stays.
  void LeaveASaveThatNeverEnds() {
    const Process saves = Train({"--name", "saves", "--steps", "1", "--save", files_->directory()});
    ASSERT_TRUE(WaitFor([this] { return files_->unanswered() > 0; })) << saves->Output();
    saves->Signal(SIGKILL);
    ASSERT_TRUE(saves->Wait(kLimit).has_value());
  }
  static bool Exists(pid_t pid) { return kill(pid, 0) == 0; }

  std::unique_ptr<SilentFiles> files_;
  const TemporaryDirectory scratch_;
};

// Gradients of the job on the GPU, behind those of the others: in the middle of its run.
constexpr int kGradients = 150;

TEST_F(FormerServer, ThatDoesNotEndHoldsUpTheJobsThatItCopiedForAndNoOthers) {
  if (!CanRun()) return;
  const std::string expected = UndisturbedHash();
  const std::string armed =
      "TIDEPOOL_KILL_AT=server.gradient_started:" + std::to_string(kGradients);
  const Process server = Serve({"--pool", "32MiB"}, WithGpu({armed, "FAKE_CUDA_LATE=" + late()}));
  LeaveASaveThatNeverEnds();
  const pid_t killed = ServerPid();
  const Process on_host = Train({"--name", "host", "--pause-ms", "20", "--norms"});
  ASSERT_TRUE(on_host->WaitForOutput("norm 3 ", kLimit)) << on_host->Output();
  on_host->Signal(SIGSTOP);  // so that the server dies at a gradient of the other job
  const Process on_gpu = TrainOnGpu({"--name", "gpu", "--norms"});
  ASSERT_TRUE(server->WaitForOutput("waiting for the end of a memserver", kLimit))
      << server->Output();
  on_host->Signal(SIGCONT);
  ASSERT_TRUE(server->WaitForOutput("is set aside", kLimit)) << server->Output();
  ExpectDone(on_host.get(), expected);
  EXPECT_TRUE(Exists(killed)) << "it has not ended";
  EXPECT_NE(ServerPid(), killed);
  const Process after = Train({"--name", "after"});
  ExpectDone(after.get(), expected);

  EXPECT_FALSE(std::filesystem::exists(late() + ".landed"));
  std::ofstream(late()).put('\n');
#ifndef TIDEPOOL_SANITIZED
  EXPECT_TRUE(WaitFor([this] { return std::filesystem::exists(late() + ".landed"); }))
      << "a copy was under way";
#endif
  EXPECT_FALSE(on_gpu->Wait(0).has_value()) << on_gpu->Output();
  EXPECT_EQ(server->Output().find("goes on"), std::string::npos) << server->Output();

  files_.reset();  // an answer: the process ends
  ASSERT_TRUE(WaitForSuccessor(server.get(), "a job that was set aside goes on"))
      << server->Output();
  ExpectDone(on_gpu.get(), expected);
}

// The states are in memory that only the keeper and the process that does not end have; and its
// server is killed, too.
TEST_F(FormerServer, StatesOnTheGpuWaitWithTheirJobThroughServersThatFollow) {
  if (!CanRun()) return;
  const Process server = Serve({"--pool", "32MiB"}, WithGpu());
  LeaveASaveThatNeverEnds();
  const pid_t stuck = ServerPid();
  const Process on_gpu = TrainOnGpu({"--name", "gpu", "--norms", "--states-on-gpu", "2"});
  ASSERT_TRUE(on_gpu->WaitForOutput("norm 10 ", kLimit)) << on_gpu->Output();
  kill(stuck, SIGKILL);
  ASSERT_TRUE(server->WaitForOutput("is set aside", kLimit)) << server->Output();
  ASSERT_TRUE(WaitFor([&] { return ServerPid() != stuck && ServerPid() != 0; }));
  const Process beside = TrainOnGpu({"--name", "beside", "--states-on-gpu", "2"});
  ExpectDone(beside.get(), UndisturbedHash());

  const pid_t second = ServerPid();
  kill(second, SIGKILL);
  ASSERT_TRUE(WaitFor([&] { return ServerPid() != second && ServerPid() != 0; }));
  EXPECT_TRUE(Exists(stuck));
  const Process after = Train({"--name", "after"});
  ExpectDone(after.get(), UndisturbedHash());
  EXPECT_FALSE(on_gpu->Wait(0).has_value()) << on_gpu->Output();

  files_.reset();
  ASSERT_TRUE(WaitForSuccessor(server.get(), "a job that was set aside goes on"))
      << server->Output();
  ExpectDone(on_gpu.get(), UndisturbedHash());
}

TEST_F(FormerServer, ThatEndsAtOnceIsWaitedForAndNobodyIsSetAside) {
  const Process server = Serve({}, WithGpu());
  const Process on_gpu = TrainOnGpu({"--name", "gpu", "--norms"});
  ASSERT_TRUE(on_gpu->WaitForOutput("norm 10 ", kLimit)) << on_gpu->Output();
  kill(ServerPid(), SIGKILL);
  ExpectDone(on_gpu.get(), UndisturbedHash());
  EXPECT_EQ(server->Output().find("is set aside"), std::string::npos) << server->Output();
}

}  // namespace former_server_test
}  // namespace tidepool::testing
