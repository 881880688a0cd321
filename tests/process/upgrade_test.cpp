// Restarts and upgrades while ranks train: servers and clients of this release, of the next one and
// of the one before, mixed (docs/shm_protocol.md, section 7).
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "memserver/residency/kept/kept_index.h"
#include "shm/messages.h"
#include "shm/protocol.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace upgrade_test {

#ifdef TIDEPOOL_SANITIZED
constexpr int kRestarts = 8, kRestartsBefore = 3, kAttachRounds = 2;
#else
constexpr int kRestarts = 30, kRestartsBefore = 8, kAttachRounds = 20;
#endif

const char* const kOlderSession = "a session of an older protocol";

// Another one for each repetition: scripts/nightly repeats, from another first seed each day.
uint64_t NextSeed() {
  static uint64_t seed = [] {
    const char* const given = std::getenv("TIDEPOOL_TEST_SEED");
    return given == nullptr ? uint64_t{7} : std::strtoull(given, nullptr, 10);
  }();
  return seed++;
}

class Upgrade : public DurableDaemon {
 protected:
  // A job of two ranks, one of this release and one of another.
  struct MixedJob {
    Process ours, other;
    uint64_t steps_seen = 1;
  };
  struct OtherRelease {
    const char *trainer, *memserver;
  };
  MixedJob TrainMixed(const OtherRelease& other) const {
    MixedJob job{Train({"--world", "2", "--rank", "0", "--norms"}),
                 TrainBy(other.trainer, {"--world", "2", "--rank", "1"}), 1};
    EXPECT_TRUE(job.ours->WaitForOutput("norm 1 ", kLimit))
        << "there is a job to hand over: " << job.ours->Output();
    return job;
  }
  // Waits until the job has sealed `more` steps since the last call; false when it has ended
  // before.
  static bool AwaitSteps(MixedJob* job, uint64_t more) {
    const uint64_t wanted = job->steps_seen + more;
    job->ours->WaitForOutput("norm " + std::to_string(wanted) + " ", kLimit);
    const std::string output = job->ours->Output();
    job->steps_seen = static_cast<uint64_t>(std::stoull(output.substr(output.rfind("norm ") + 5)));
    return job->steps_seen >= wanted;
  }
  static void ExpectBits(const MixedJob& job, const std::vector<std::string>& hashes) {
    const std::array<ChildProcess*, 2> ranks{job.ours.get(), job.other.get()};
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto ended = ranks[rank]->Wait(kLimit);
      ASSERT_TRUE(ended.has_value()) << ranks[rank]->Output();
      ASSERT_EQ(ended->exit_code, 0) << ranks[rank]->Output();
      EXPECT_EQ(HashIn(ranks[rank]->Output()), hashes[rank]) << ranks[rank]->Output();
    }
  }
  void ExpectOrderlyEnd(ChildProcess* server) const {
    server->Signal(SIGINT);
    const auto ended = server->Wait(kLimit);
    EXPECT_TRUE(ended && ended->exit_code == 0) << server->Output();
    EXPECT_TRUE(WaitForFilesToGo());
  }
  // Each server, of one release and the other in turn, seals steps of the job before it is
  // replaced.
  void Roll(const OtherRelease& other, int restarts) {
    const uint64_t seed = NextSeed();
    SCOPED_TRACE("TIDEPOOL_TEST_SEED=" + std::to_string(seed));
    const std::vector<std::string> expected = UndisturbedHashes(2);
    Process server = Serve({"--no-respawn"});
    SplitMix64 random(seed);
    SteadyClock clock;
    MixedJob job = TrainMixed(other);
    for (int restart = 0; restart < restarts; ++restart) {
      if (!AwaitSteps(&job, 1 + random.Below(3))) {
        ExpectBits(job, expected);
        job = TrainMixed(other);
      }
      clock.SleepNs(static_cast<int64_t>(random.Below(static_cast<uint64_t>(3 * kNsPerMs))));
      HandOver(server.get());
      server = ServeBy(restart % 2 == 0 ? other.memserver : TIDEPOOL_MEMSERVER, {"--no-respawn"});
    }
    ExpectBits(job, expected);
    ExpectOrderlyEnd(server.get());
  }
};

TEST_F(Upgrade, RollingRestartsWithBothReleasesMixedFailNoStep) {
  Roll({TIDEPOOL_THIN_TRAINER_NEXT, TIDEPOOL_MEMSERVER_NEXT_PROTOCOL}, kRestarts);
}

// As those of the release before: they greet, train, come back and serve in the version before
// alone.
TEST_F(Upgrade, ProgramsOfTheVersionBeforeAreServedAndServe) {
  Roll({TIDEPOOL_THIN_TRAINER_BEFORE, TIDEPOOL_MEMSERVER_BEFORE}, kRestartsBefore);
  const Process ours = Serve();
  const Process rank = TrainBy(TIDEPOOL_THIN_TRAINER_BEFORE, {"--steps", "2"});
  const auto ended = rank->Wait(kLimit);
  EXPECT_TRUE(ended && ended->exit_code == 0) << rank->Output();
  ASSERT_TRUE(ours->WaitForOutput(kOlderSession, kLimit)) << ours->Output();
  EXPECT_NE(ours->Output().find("\"protocol\":" + std::to_string(shm::kAbiVersionBefore) + ","),
            std::string::npos)
      << ours->Output();
  ExpectOrderlyEnd(ours.get());
}

// Who speaks what is seen in the servers' logs: they name each session that is not of their newest
// version.
TEST_F(Upgrade, ASessionHasTheHighestVersionThatBothSpeak) {
  const auto run = [this](const char* trainer) {
    const Process rank = TrainBy(trainer, {"--steps", "2"});
    const auto ended = rank->Wait(kLimit);
    EXPECT_TRUE(ended && ended->exit_code == 0) << rank->Output();
  };
  const Process next = ServeBy(TIDEPOOL_MEMSERVER_NEXT_PROTOCOL);
  run(TIDEPOOL_THIN_TRAINER_NEXT);
  EXPECT_EQ(next->Output().find(kOlderSession), std::string::npos) << next->Output();
  run(TIDEPOOL_THIN_TRAINER);
  ASSERT_TRUE(next->WaitForOutput(kOlderSession, kLimit)) << next->Output();
  const std::string agreed = "\"protocol\":" + std::to_string(shm::kOwnProtocols.highest) + ",";
  EXPECT_TRUE(next->WaitForOutput(agreed, kLimit)) << next->Output();
  ExpectOrderlyEnd(next.get());
  const Process ours = Serve();
  run(TIDEPOOL_THIN_TRAINER_NEXT);
  run(TIDEPOOL_THIN_TRAINER);
  EXPECT_EQ(ours->Output().find(kOlderSession), std::string::npos) << ours->Output();
  ExpectOrderlyEnd(ours.get());
}

// SIGTERM finds ranks at any point of their attach: with a job that is open, with one whose memory
// is being zeroed, and with none.
TEST_F(Upgrade, RanksThatAttachAsTheServerIsReplacedAttachToTheNextOne) {
  const std::vector<std::string> server_flags{"--no-respawn", "--pool", "64MiB"};
  SplitMix64 random(11);
  SteadyClock clock;
  Process server = Serve(server_flags);
  for (int round = 0; round < kAttachRounds; ++round) {
    std::vector<Process> ranks;
    for (const char* rank : {"0", "1"})
      ranks.push_back(
          Train({"--world", "2", "--elements", "524288", "--steps", "2", "--rank", rank}));
    clock.SleepNs(static_cast<int64_t>(random.Below(static_cast<uint64_t>(40 * kNsPerMs))));
    HandOver(server.get());
    server = Serve(server_flags);
    for (const Process& rank : ranks) {
      const auto ended = rank->Wait(kLimit);
      ASSERT_TRUE(ended && ended->exit_code == 0) << rank->Output();
    }
  }
  ExpectOrderlyEnd(server.get());
}

// The release after this one may have another layout: it goes on with our memory, and we refuse
// its.
TEST_F(Upgrade, TheNextReleaseTakesOverAndAnUnknownLayoutIsRefused) {
  const std::string expected = UndisturbedHash();
  const Process server = Serve({"--no-respawn"});
  const Process trainer = Train({"--norms"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
  HandOver(server.get());
  const Process newer = ServeBy(TIDEPOOL_MEMSERVER_NEXT, {"--no-respawn"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 30 ", kLimit)) << trainer->Output();
  HandOver(newer.get());
  ChildProcess refused(MemserverCommand(directory_.path(), {"--keeper", "process", "--lease", "20s",
                                                            "--pool", "8MiB", "--no-respawn"}));
  EXPECT_EQ(refused.Wait(kLimit)->exit_code, 8) << refused.Output();
  EXPECT_NE(refused.Output().find("has layout " + std::to_string(memserver::kKeptLayout + 1)),
            std::string::npos)
      << refused.Output();
  EXPECT_NE(refused.Output().find("knows layout " + std::to_string(memserver::kKeptLayoutMin) +
                                  " to " + std::to_string(memserver::kKeptLayout)),
            std::string::npos)
      << refused.Output();
  // Nothing was lost by the refusal.
  const Process again = ServeBy(TIDEPOOL_MEMSERVER_NEXT, {"--no-respawn"});
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  again->Signal(SIGINT);
  EXPECT_EQ(again->Wait(kLimit)->exit_code, 0);
}

}  // namespace upgrade_test
}  // namespace tidepool::testing
