// Jobs on one memserver: what one of them trains does not depend on the others, and nothing of them
// stays.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace two_jobs_test {

class TwoJobs : public TrainerRuns {
 protected:
  ~TwoJobs() override { KillDaemon(server_.socket_dir()); }

  // Two jobs that have little in common. A weights file names its job, so each keeps its name.
  std::unique_ptr<ChildProcess> StartJob(const std::string& name, bool is_second) const {
    Flags flags =
        is_second
            ? Flags{{"--job", "b"}, {"--dtype", "bf16"}, {"--seed", "2"}, {"--accumulate", "2"}}
            : Flags{{"--job", "a"}};
    flags.insert({"--socket-dir", server_.socket_dir()});
    return Start(Words(name, flags));
  }
  // Trains for a while, then waits for SIGCONT: the other job would else have ended before this one
  // begins.
  std::unique_ptr<ChildProcess> StartAndStop(const std::string& name, bool is_second) const {
    auto trainer = StartJob(name, is_second);
    EXPECT_TRUE(WaitForLines(name, 3, trainer.get())) << trainer->Output();
    trainer->Signal(SIGSTOP);
    return trainer;
  }

  MemserverProcess server_{{"--keeper", "process", "--lease", "60s"}};
};

TEST_F(TwoJobs, TrainAsEachDoesAloneAndLeaveNothing) {
  const OpenDescriptors at_rest = SettledDescriptorsOf(server_.socket_dir());
  ExpectDone(StartJob("first-alone", false).get());
  ExpectDone(StartJob("second-alone", true).get());
  const auto first = StartAndStop("first", false), second = StartAndStop("second", true);
  const Holdings both = HoldingsOf(server_.socket_dir());
  EXPECT_EQ(both.jobs, 2);
  EXPECT_EQ(both.sessions, 2);
  for (const auto* trainer : {first.get(), second.get()}) trainer->Signal(SIGCONT);
  for (auto* trainer : {first.get(), second.get()}) ExpectDone(trainer);
  ExpectDone(StartJob("third", false).get());
  ExpectSame("first", "first-alone");
  ExpectSame("second", "second-alone");
  ExpectSame("third", "first-alone");
  EXPECT_FALSE(Weights("first") == Weights("second")) << "one job twice would say little";
  EXPECT_EQ(WaitForHoldings(server_.socket_dir(), kNothing, kRunNs), kNothing);
  const OpenDescriptors left = WaitForDescriptors(server_.socket_dir(), at_rest, kRunNs);
  EXPECT_TRUE(left == at_rest) << "open are\n" << left.Text() << "\nand were\n" << at_rest.Text();
}

// Ctrl-C of a run that asks for a job that goes on.
TEST_F(TwoJobs, OneThatIsInterruptedStaysAndGoesOnWithTheSameBits) {
  const Flags flags{{"--job", "a"},
                    {"--steps", "100"},
                    {"--resume", "auto"},
                    {"--socket-dir", server_.socket_dir()}};
  ExpectDone(Start(Words("whole", flags)).get());
  const auto trainer = Start(Words("broken", flags));
  ASSERT_TRUE(WaitForLines("broken", 3, trainer.get())) << trainer->Output();
  trainer->Signal(SIGINT);
  const auto end = trainer->Wait(kRunNs);
  ASSERT_TRUE(end) << trainer->Output();
  EXPECT_EQ(end->exit_code, 128 + SIGINT) << trainer->Output();
  EXPECT_NE(trainer->Output().find("job a is kept until "), std::string::npos) << trainer->Output();
  EXPECT_EQ(HoldingsOf(server_.socket_dir()).jobs, 1);
  ExpectDone(Start(Words("broken", flags)).get());
  EXPECT_EQ(Losses("whole").size(), 101u);
  EXPECT_EQ(Losses("broken"), Losses("whole"));
  EXPECT_TRUE(Weights("broken") == Weights("whole"));
  EXPECT_EQ(WaitForHoldings(server_.socket_dir(), kNothing, kRunNs), kNothing);
}

}  // namespace two_jobs_test
}  // namespace tidepool::testing
