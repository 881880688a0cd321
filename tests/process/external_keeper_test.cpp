// memserver and its keeper as two programs that something else starts and starts again, as the two
// containers of a pod.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "shm/socket_path.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace external_keeper_test {

class Pod : public DurableDaemon {
 protected:
  Process StartKeeper() const {
    auto keeper = std::make_unique<ChildProcess>(std::vector<std::string>{
        TIDEPOOL_MEMSERVER, "keeper", "--socket-dir", directory_.path(), "--lease", "60s"});
    EXPECT_TRUE(keeper->WaitForOutput("keeper ready", kLimit)) << keeper->Output();
    return keeper;
  }
  Process StartServer() const { return Serve({"--keeper", "external"}); }
  static void Kill(ChildProcess* process) {
    process->Signal(SIGKILL);
    ASSERT_TRUE(process->Wait(kLimit).has_value());
  }
};

TEST_F(Pod, AJobGoesOnWhenEitherContainerIsStartedAgain) {
  const std::string expected = UndisturbedHash();
  Process keeper = StartKeeper();
  Process server = StartServer();
  const Process trainer = Train({"--norms", "--pause-ms", "50"});

  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
  Kill(server.get());
  server = StartServer();
  EXPECT_TRUE(server->WaitForOutput("job found in kept memory", kLimit)) << server->Output();

  ASSERT_TRUE(trainer->WaitForOutput("norm 25 ", kLimit)) << trainer->Output();
  Kill(keeper.get());
  ASSERT_TRUE(server->WaitForOutput("no new one could be started", kLimit)) << server->Output();
  keeper = StartKeeper();
  ASSERT_TRUE(server->WaitForOutput("a new one holds the memory", kLimit)) << server->Output();

  Kill(server.get());
  server = StartServer();
  EXPECT_TRUE(server->WaitForOutput("job found in kept memory", kLimit)) << server->Output();
  ExpectDone(trainer.get(), expected);

  // Kubernetes ends the containers of a pod: memserver in order, then the keeper, which nobody
  // needs any more.
  server->Signal(SIGINT);
  EXPECT_EQ(server->Wait(kLimit)->exit_code, 0) << server->Output();
  keeper->Signal(SIGTERM);
  EXPECT_EQ(keeper->Wait(kLimit)->exit_code, 0) << keeper->Output();
  EXPECT_NE(access(shm::KeeperSocketPath(directory_.path()).c_str(), F_OK), 0);
}

TEST_F(Pod, ASecondKeeperOfADirectoryIsRefused) {
  const Process keeper = StartKeeper();
  ChildProcess second({TIDEPOOL_MEMSERVER, "keeper", "--socket-dir", directory_.path()});
  EXPECT_NE(second.Wait(kLimit)->exit_code, 0);
  EXPECT_NE(second.Output().find("a keeper listens there already"), std::string::npos)
      << second.Output();
  keeper->Signal(SIGINT);
  EXPECT_EQ(keeper->Wait(kLimit)->exit_code, 0) << keeper->Output();
}

}  // namespace external_keeper_test
}  // namespace tidepool::testing
