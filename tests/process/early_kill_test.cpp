// Ranks of a pair die by SIGKILL before their first step is sealed, in a pool with room for the job
// once: the run goes on from its beginning, whatever its former self still holds at that moment;
// alone, with memserver killed too, and with states on NVMe.
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "shm/spec/state_footprint.h"
#include "tests/nvme/many_times.h"
#include "tests/nvme/scratch_directory.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace early_kill_test {

constexpr uint32_t kRanks = 2;
constexpr const char* kSteps = "2";

// Every place of a client up to the end of its first step; of what comes often, an early one, one
// in the middle and one of the last.
constexpr const char* kPoints[] = {
    "client.connected:1",     "client.hello_sent:1",    "client.spec_sent:1",
    "client.attached:1",      "client.put_sent:1",      "client.put_sent:3",
    "client.schedule_sent:1", "client.fetch_sent:1",    "client.fetch_sent:4",
    "client.outcome_taken:5", "client.gradient_sent:1", "client.gradient_sent:4",
    "client.end_step_sent:1"};

class EarlyKill : public DurableDaemon {
 protected:
  enum class States { kOnHost, kOnNvme };

  static ThinOptions Job() {
    ThinOptions job;
    job.name = "pair";
    job.world = kRanks;
    job.chunks = 4;
    job.chunk_elements = 4800;
    return job;
  }

  // The pool has room for the pair once.
  Process ServeOne(States states) const {
    const bool on_nvme = states == States::kOnNvme;
    const shm::JobSpec spec = SpecOf(Job());
    const uint64_t pool = shm::HostStateBytesOf(spec, on_nvme ? 0 : shm::kNoSpill).total();
    std::vector<std::string> flags = {"--no-respawn", "--pool", std::to_string(pool)};
    if (on_nvme) {
      const std::vector<std::string> nvme = {"--nvme", nvme_.path() + ":16MiB", "--states-on",
                                             "nvme"};
      flags.insert(flags.end(), nvme.begin(), nvme.end());
    }
    return Serve(flags);
  }

  Process StartRank(Rank rank, const std::string& point = "") const {
    const ThinOptions job = Job();
    std::vector<std::string> environment;
    if (!point.empty()) environment.push_back("TIDEPOOL_KILL_AT=" + point);
    return Train({"--name", job.name, "--world", std::to_string(job.world), "--rank",
                  std::to_string(rank), "--elements", std::to_string(job.chunk_elements), "--steps",
                  kSteps, "--pause-ms", "0", "--persistent"},
                 environment);
  }

  // The hashes of an undisturbed run, found by the first that asks.
  const std::vector<std::string>& Undisturbed() {
    static const std::vector<std::string> hashes = [this] {
      const Process server = ServeOne(States::kOnHost);
      const Process ranks[kRanks] = {StartRank(0), StartRank(1)};
      std::vector<std::string> found;
      for (const Process& rank : ranks) {
        EXPECT_EQ(rank->Wait(kLimit)->exit_code, 0) << rank->Output();
        found.push_back(HashIn(rank->Output()));
      }
      EndServer(server);
      return found;
    }();
    return hashes;
  }

  static void EndServer(const Process& server) {
    server->Signal(SIGINT);
    const auto end = server->Wait(kLimit);
    ASSERT_TRUE(end && end->exit_code == 0) << server->Output();
  }

  static void KillServer(const Process& server) {
    server->Signal(SIGKILL);
    ASSERT_TRUE(server->Wait(kLimit).has_value());
  }

  // The victim dies at `point`, and so does its successor; then both ranks end well, with the right
  // bits.
  void ExpectARunThatEndsWell(const std::string& point, Rank victim, Process* server,
                              States states) {
    SCOPED_TRACE(point + " of rank " + std::to_string(victim));
    const std::vector<std::string> expected = Undisturbed();
    Process ranks[kRanks];
    for (Rank rank = 0; rank < kRanks; ++rank)
      ranks[rank] = StartRank(rank, rank == victim ? point : "");

    for (int time = 0; time < 2; ++time) {
      const auto killed = ranks[victim]->Wait(kLimit);
      ASSERT_TRUE(killed && killed->signal == SIGKILL) << ranks[victim]->Output();
      ++kills_;
      if (server != nullptr && time == 0) {
        SteadyClock().SleepNs(static_cast<int64_t>(random_.Below(3)) * kNsPerMs);
        KillServer(*server);
        *server = ServeOne(states);
      }
      ranks[victim] = StartRank(victim, time == 0 ? point : "");
    }

    for (Rank rank = 0; rank < kRanks; ++rank) ExpectDone(ranks[rank].get(), expected[rank]);
  }

  void KillAtEveryPoint(States states, bool server_too) {
    Undisturbed();
    Process server = ServeOne(states);
    const uint64_t times = nvme::NumberIn("TIDEPOOL_EARLY_KILLS", 1);
    for (uint64_t time = 0; time < times && !HasFailure(); ++time) {
      for (const char* point : kPoints) {
        const auto victim = static_cast<Rank>(random_.Below(kRanks));
        ExpectARunThatEndsWell(point, victim, server_too ? &server : nullptr, states);
      }
    }
    EXPECT_GE(kills_, 2 * std::size(kPoints));
    EndServer(server);
  }

  const nvme::ScratchDirectory nvme_;
  SplitMix64 random_{nvme::SeedOr(14)};
  uint64_t kills_ = 0;
};

TEST_F(EarlyKill, OfARankEndsNoRun) {
  KillAtEveryPoint(States::kOnHost, false);
}

TEST_F(EarlyKill, OfARankAndTheServerEndsNoRun) {
  KillAtEveryPoint(States::kOnHost, true);
}

TEST_F(EarlyKill, OfARankWithStatesOnNvmeEndsNoRun) {
  KillAtEveryPoint(States::kOnNvme, false);
}

}  // namespace early_kill_test
}  // namespace tidepool::testing
