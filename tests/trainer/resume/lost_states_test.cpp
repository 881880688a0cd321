// A run that would go on with states that are gone ends with exit code 7, and begins anew only
// where it is told to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error_catalog.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace lost_states_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LostStates : public TrainerRuns {
 protected:
  std::vector<std::string> Run(const std::string& name, const MemserverProcess& server,
                               Flags more = {}) const {
    more.insert({{"--job", "j"}, {"--resume", "auto"}, {"--socket-dir", server.socket_dir()}});
    return Words(name, more);
  }
  static std::vector<std::string> Launched(std::vector<std::string> words) {
    words.insert(words.begin(), {"launch", "-n", "1", "--max-restarts", "3", "--"});
    return words;
  }
  // Empties the drive's files until the run ends. Once may not be enough: what is in the pool at
  // that moment is written again, and then the drive has all of it.
  static bool EmptyUntilItEnds(const std::string& drive, ChildProcess* trainer) {
    SteadyClock clock;
    const int64_t limit = clock.NowNs() + kRunNs;
    while (!trainer->Wait(0)) {
      for (const auto& entry : std::filesystem::directory_iterator(drive)) {
        if (entry.is_regular_file() && entry.file_size() > (1 << 20)) {
          std::filesystem::resize_file(entry.path(), 0);
        }
      }
      if (clock.NowNs() > limit) return false;
      clock.SleepNs(kNsPerMs);
    }
    return true;
  }
  static void ExpectRefused(ChildProcess* trainer, const std::string& text) {
    const auto end = trainer->Wait(kRunNs);
    ASSERT_TRUE(end) << trainer->Output();
    EXPECT_EQ(end->exit_code, kExitCorrupt) << trainer->Output();
    EXPECT_THAT(trainer->Output(), AllOf(HasSubstr("error[TP3014]"),
                                         HasSubstr("--resume auto --or-new"), HasSubstr(text)));
  }
};

TEST_F(LostStates, OfADriveEndALaunchedRunThatIsNotBegunAnewWithoutAWord) {
  const TemporaryDirectory drive;
  const MemserverProcess server(
      {"--lease", "60s", "--nvme", drive.path() + ":64MiB", "--states-on", "nvme"});
  const auto trainer = Start(Launched(Run("lost", server, {{"--steps", "100000"}})));
  ASSERT_TRUE(WaitForLines("lost", 6, trainer.get())) << trainer->Output();
  ASSERT_TRUE(EmptyUntilItEnds(drive.path(), trainer.get())) << trainer->Output();
  ExpectRefused(trainer.get(), "the states of job \"j\" are lost");
  EXPECT_GE(Losses("lost").size(), 6u) << "metrics of the run that ended are what it has left";
  EXPECT_FALSE(std::filesystem::exists(Out("lost") + "/metrics.1.jsonl")) << trainer->Output();

  // Later, by hand: the folder says what was there, also beside a memserver that never knew the
  // job.
  const MemserverProcess other;
  const std::vector<std::string> before = Losses("lost");
  ExpectRefused(Start(Run("lost", other)).get(), Out("lost") + "/unfinished.job says");
  EXPECT_EQ(Losses("lost"), before);
  const auto anew = Start(Run("lost", other, {{"--or-new", ""}}));
  ExpectDone(anew.get());
  EXPECT_THAT(anew->Output(), HasSubstr("is kept under another name"));
  EXPECT_EQ(Losses("lost").size(), kSteps + 1);
  EXPECT_TRUE(std::filesystem::exists(Out("lost") + "/metrics.1.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(Out("lost") + "/unfinished.job"))
      << "it was brought to its end";
}

// Ctrl-C, and lunch for longer than the lease.
TEST_F(LostStates, AtTheEndOfTheLeaseAreToldByTheServerToARunWithAnotherFolder) {
  const MemserverProcess server({"--lease", "100ms"});
  const auto trainer = Start(Run("morning", server, {{"--steps", "100000"}}));
  ASSERT_TRUE(WaitForLines("morning", 4, trainer.get())) << trainer->Output();
  trainer->Signal(SIGINT);
  ASSERT_TRUE(trainer->Wait(kRunNs)) << trainer->Output();
  EXPECT_THAT(trainer->Output(), HasSubstr("job j is kept until "));
  EXPECT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kRunNs), kNothing);
  ExpectRefused(Start(Run("noon", server)).get(), "its lease");
  ExpectDone(Start(Run("noon", server, {{"--or-new", ""}})).get());
  const auto again = Start(Run("afternoon", server));
  ExpectDone(again.get());
  EXPECT_THAT(again->Output(), Not(HasSubstr("TP3014")))
      << "the job was begun anew and brought to its end";
}

}  // namespace lost_states_test
}  // namespace tidepool::testing
