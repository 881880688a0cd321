// A memserver that is started on kept memory and fails, for whatever reason but damage, leaves that
// memory as it was: the job goes on when the next start succeeds, whether the keeper makes it or
// somebody else does.
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "base/system/loopback.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace adoption_test {

class Adoption : public DurableDaemon {
 protected:
  // Starts a job that waits for a server for long, and returns when it has sealed steps.
  Process TrainToStepFive() const {
    Process trainer = Train({"--norms", "--server-timeout-ms", "120000"});
    EXPECT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
    return trainer;
  }
  void EndWith(ChildProcess* server) const {
    server->Signal(SIGINT);
    const auto ended = server->Wait(kLimit);
    EXPECT_TRUE(ended && ended->exit_code == 0) << server->Output();
    EXPECT_TRUE(WaitForFilesToGo());
  }
};

// How a start under a limit went: it served and handed over, or ended in order.
enum class Start { kServed, kRefused, kShort };

// Limits the address space (ulimit -v, in KiB) from where the program does not start to where it
// serves; and the number of descriptors.
TEST_F(Adoption, NoLimitOnAddressSpaceOrDescriptorsLosesAJob) {
  const std::vector<std::string> flags{"--keeper", "process",      "--lease", "20s", "--pool",
                                       "512MiB",   "--no-respawn", "--gpu",   "none"};
  const std::string expected = UndisturbedHash();
  Process server = Serve(flags);
  const Process trainer = TrainToStepFive();
  HandOver(server.get());

  const auto start_under = [&](const std::string& limit) {
    std::vector<std::string> command{"/bin/sh", "-c", "ulimit " + limit + " && exec \"$@\"", "sh"};
    for (const std::string& word : MemserverCommand(directory_.path(), flags))
      command.push_back(word);
    ChildProcess limited(command);
    if (limited.WaitForOutput("\"ready\"", kLimit)) {
      HandOver(&limited);
      return Start::kServed;
    }
    const auto ended = limited.Wait(kLimit);
    EXPECT_TRUE(ended && ended->signal == 0 && ended->exit_code != 0)
        << limit << ": " << limited.Output();
    const bool refused =
        limited.Output().find("kept memory cannot be taken over") != std::string::npos;
    EXPECT_EQ(limited.Output().find("given up"), std::string::npos)
        << limit << ": " << limited.Output();
    if (refused) {
      EXPECT_EQ(ended->exit_code, kExitHostMemory) << limited.Output();
    }
    return refused ? Start::kRefused : Start::kShort;
  };
// A sanitizer reserves more of the address space than any limit here leaves.
#ifndef TIDEPOOL_SANITIZED
  std::multiset<Start> seen;
  for (int mib = 100; mib <= 1200 && seen.count(Start::kServed) == 0; mib += 60)
    seen.insert(start_under("-v " + std::to_string(mib * 1024)));
  EXPECT_GT(seen.count(Start::kRefused), 0U) << "no limit let it take the memory and not map it";
#endif
  for (const int files : {8, 12, 16, 24, 32}) start_under("-n " + std::to_string(files));

  server = Serve(flags);
  ExpectDone(trainer.get(), expected);
  EndWith(server.get());
}

// The configuration is broken for longer than the lease, which does not run while the keeper tries.
TEST_F(Adoption, AConfigurationThatIsBrokenForAWhileCostsNoJob) {
  const TemporaryDirectory elsewhere;
  const std::string config = elsewhere.path() + "/memserver.toml";
  const auto write = [&config](const char* text) { std::ofstream(config) << text; };
  write("");
  const std::string expected = UndisturbedHash();
  const Process server = Serve({"--config", config, "--lease", "100ms"});
  const Process trainer = TrainToStepFive();
  write("[[[");
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  // The keeper's pauses are longer than the lease by now.
  const SteadyClock clock;
  for (const int64_t end = clock.NowNs() + kLimit;
       server->Output().find("\"start\":4") == std::string::npos && clock.NowNs() < end;)
    SteadyClock().SleepNs(kNsPerMs);
  EXPECT_TRUE(server->WaitForOutput("TP1102", kLimit)) << server->Output();
  write("");
  ExpectDone(trainer.get(), expected);
  EXPECT_TRUE(server->WaitForOutput("job found in kept memory", kLimit)) << server->Output();
  kill(ServerPid(), SIGINT);
  EXPECT_TRUE(WaitForFilesToGo());
}

// The log reports the times in which one process alone has the memory; prints how long they are.
TEST_F(Adoption, TheTimesInWhichOneProcessHasTheMemoryAreTold) {
  const Process server = Serve();
  const Process trainer = Train({"--norms", "--steps", "100000", "--pause-ms", "0"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
  const auto told = [&](const std::string& what) {
    const SteadyClock clock;
    for (const int64_t end = clock.NowNs() + kLimit; clock.NowNs() < end;
         SteadyClock().SleepNs(kNsPerMs)) {
      const std::string text = server->Output();
      const size_t line = text.rfind(what), at = text.find("\"alone_ms\":", line);
      if (line != std::string::npos && at != std::string::npos &&
          text.find('}', at) != std::string::npos)
        return std::stod(text.substr(at + 11));
    }
    ADD_FAILURE() << what << " was not told: " << server->Output();
    return -1.0;
  };
  kill(FindKeeper(directory_.path()), SIGKILL);
  const double without_keeper = told("a new one holds the memory");
  const pid_t first = ServerPid();
  kill(first, SIGKILL);
  const double without_server = told("kept memory given to a memserver");
  EXPECT_GE(without_keeper, 0);
  EXPECT_GT(without_server, 0) << "it was started, at least";
  std::printf(
      "alone with the memory: memserver %.1f ms after its keeper's death, the keeper %.1f ms after "
      "memserver's\n",
      without_keeper, without_server);
}

// While memserver is away, anybody may bind its port.
TEST_F(Adoption, APortOfMetricsThatSomebodyTookMeanwhileCostsNoJob) {
  UniqueFd taken = std::move(ListenLoopback("127.0.0.1:0", "--flag").value());
  const std::vector<std::string> flags{"--no-respawn", "--metrics-listen", AddressOf(taken)};
  const std::string expected = UndisturbedHash();
  Process server = Serve({"--no-respawn"});
  const Process trainer = TrainToStepFive();
  HandOver(server.get());
  server = Serve(flags);
  EXPECT_TRUE(server->WaitForOutput("metrics are not served over TCP yet", kLimit))
      << server->Output();
  ExpectDone(trainer.get(), expected);
  taken.Reset();
  EXPECT_TRUE(server->WaitForOutput("metrics are served over TCP", kLimit)) << server->Output();
  EndWith(server.get());
}

}  // namespace adoption_test
}  // namespace tidepool::testing
