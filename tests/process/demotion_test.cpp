// Whole processes: two jobs whose sum exceeds the pool. The first has lost its trainer and goes to
// the drive, the second gets its room, and both end with the bits that they would have had alone,
// whoever is killed meanwhile and whatever the drive refuses.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"
#include "tests/nvme/scratch_directory.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace demotion_test {

constexpr uint32_t kChunks = 6;
constexpr uint64_t kElements = 40960;

shm::JobSpec Spec() {
  ThinOptions options;
  options.dtype = DType::kBF16;
  options.chunks = kChunks;
  options.chunk_elements = kElements;
  return SpecOf(options);
}

int64_t Field(const std::string& json, const std::string& part, const std::string& key) {
  const size_t at = json.find("\"" + part + "\":");
  return at == std::string::npos ? -1 : NumberIn(json.substr(at), key);
}

class DemotedJobs : public DurableDaemon {
 protected:
  // The pool has room for the second job, which may not spill, when the first is on the drive.
  Process ServeTwo(const std::vector<std::string>& environment = {}) const {
    const std::string config = directory_.path() + ".toml";
    std::ofstream(config) << "[[jobs.quota]]\nmatch = \"job:second\"\nnvme_limit = \"0B\"\n";
    return Serve({"--no-respawn", "--lease", "120s", "--pool", "6MiB", "--nvme",
                  nvme_.path() + ":16MiB", "--config", config},
                 environment);
  }
  static std::vector<std::string> Job(const std::string& name,
                                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags{"--name",
                                   name,
                                   "--bf16",
                                   "--chunks",
                                   std::to_string(kChunks),
                                   "--elements",
                                   std::to_string(kElements),
                                   "--steps",
                                   "30"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  std::string Admin(const std::string& path) const { return AskAdmin(directory_.path(), path); }
  // The first one, killed in the middle of its run.
  void TrainAndKill() const {
    const Process first = Train(Job("first", {"--norms", "--pause-ms", "5"}));
    ASSERT_TRUE(first->WaitForOutput("norm 5 ", kLimit)) << first->Output();
    first->Signal(SIGKILL);
    ASSERT_TRUE(first->Wait(kLimit).has_value());
    const Holdings detached{1, 0, static_cast<int64_t>(shm::StateBytesOf(Spec()).total()), 0};
    ASSERT_EQ(WaitForHoldings(directory_.path(), detached, kLimit), detached);
  }
  std::string HashAlone() const {
    const Process alone = Train(Job("alone"));
    EXPECT_EQ(alone->Wait(kLimit)->exit_code, 0) << alone->Output();
    return HashIn(alone->Output());
  }
  // It goes on behind what it had sealed.
  void ExpectGoesOn(const std::string& hash) const {
    const Process first = Train(Job("first"));
    ExpectDone(first.get(), hash);
    EXPECT_EQ(first->Output().find("from 0\n"), std::string::npos) << first->Output();
  }

  const nvme::ScratchDirectory nvme_;
};

TEST_F(DemotedJobs, TheFirstGoesToTheDriveTheSecondGetsItsRoomAndBothHaveTheirBits) {
  const Process server = ServeTwo();
  const std::string hash = HashAlone();
  ASSERT_NO_FATAL_FAILURE(TrainAndKill());
  const Process second = Train(Job("second", {"--stay"}));
  ASSERT_TRUE(second->WaitForOutput(" stays", kLimit)) << second->Output();
  const std::string jobs = Admin("/v1/jobs");
  EXPECT_EQ(NumberIn(jobs, "pool_bytes"),
            static_cast<int64_t>(shm::HostStateBytesOf(Spec(), 0).total()))
      << jobs;
  EXPECT_EQ(NumberIn(jobs, "nvme_bytes"), static_cast<int64_t>(shm::NvmeBytesOf(Spec(), 0)));
  EXPECT_EQ(NumberIn(jobs, "chunks_demoted"), kChunks);
  const std::string nvme = Admin("/v1/nvme");
  EXPECT_EQ(Field(nvme, "demotion", "jobs_moved"), 1);
  EXPECT_EQ(Field(nvme, "demotion", "pool_bytes_freed"),
            static_cast<int64_t>(shm::StateBytesOf(Spec()).total() -
                                 shm::HostStateBytesOf(Spec(), 0).total()));
  EXPECT_NE(Memctl({"ps"}).find("POOL+NVME"), std::string::npos);
  EXPECT_NE(Memctl({"nvme", "status"}).find("moved   1 job whose room others needed"),
            std::string::npos)
      << Memctl({"nvme", "status"});
  EXPECT_NE(Memctl({"events"}).find("states of a job lie on NVMe now"), std::string::npos);
  EXPECT_NE(Admin("/metrics").find("tidepool_demotions_total{outcome=\"moved\"} 1"),
            std::string::npos);
  ExpectGoesOn(hash);  // while the second is there
  second->Signal(SIGUSR1);
  ExpectDone(second.get(), hash);
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
  EXPECT_EQ(Field(Admin("/v1/status"), "nvme", "bytes_used"), 0);
}

#ifdef TIDEPOOL_SANITIZED
// The others are the same code, and no faster.
constexpr auto kPoints = std::to_array<const char*>({"server.demotion_noted"});
#else
constexpr auto kPoints = std::to_array<const char*>(
    {"server.demotion_begun", "server.demotion_staged:3", "server.demotion_written",
     "server.demotion_noted", "server.demotion_committed", "server.demotion_ended"});
#endif

TEST_F(DemotedJobs, AServerKilledAtAnyPointOfItLosesNothing) {
  std::string hash;
  {
    const Process server = ServeTwo();
    hash = HashAlone();
    server->Signal(SIGINT);
    ASSERT_TRUE(server->Wait(kLimit).has_value());
  }
  for (const char* point : kPoints) {
    Process server = ServeTwo({std::string("TIDEPOOL_KILL_AT=") + point});
    ASSERT_NO_FATAL_FAILURE(TrainAndKill());
    const Process second = Train(Job("second", {"--persistent"}));
    const auto killed = server->Wait(kLimit);
    ASSERT_TRUE(killed.has_value()) << "nobody passed " << point;
    EXPECT_EQ(killed->signal, SIGKILL);
    server = ServeTwo();
    ExpectDone(second.get(), hash);
    ExpectGoesOn(hash);
    EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing) << point;
    EXPECT_EQ(Field(Admin("/v1/status"), "nvme", "bytes_used"), 0) << point;
    server->Signal(SIGINT);
    ASSERT_TRUE(server->Wait(kLimit).has_value());
  }
}

TEST_F(DemotedJobs, WritesThatTheKernelRefusesLeaveTheStatesInThePoolAndTheSecondIsToldWhy) {
  const Process server = ServeTwo();
  const std::string hash = HashAlone();
  ASSERT_NO_FATAL_FAILURE(TrainAndKill());
  const rlimit little{1 * kMiB, RLIM_INFINITY};
  ASSERT_EQ(prlimit(server->pid(), RLIMIT_FSIZE, &little, nullptr), 0);
  const Process second = Train(Job("second"));
  EXPECT_EQ(second->Wait(kLimit)->exit_code, 5);
  EXPECT_NE(second->Output().find("moving states to NVMe makes no room: first could not be moved"),
            std::string::npos)
      << second->Output();
  EXPECT_NE(second->Output().find("File too large"), std::string::npos) << second->Output();
  EXPECT_TRUE(server->WaitForOutput("they stay on the host", kLimit));
  EXPECT_EQ(NumberIn(Admin("/v1/jobs"), "nvme_bytes"), 0);
  ExpectGoesOn(hash);
}

// What a second user may not have, for every reason that there is; the first job is where it was.
TEST_F(DemotedJobs, AnAttachedJobIsNeverMoved) {
  const Process server = ServeTwo();
  const std::string hash = HashAlone();
  const Process first = Train(Job("first", {"--stay"}));
  ASSERT_TRUE(first->WaitForOutput(" stays", kLimit)) << first->Output();
  const Process second = Train(Job("second"));
  EXPECT_EQ(second->Wait(kLimit)->exit_code, 5);
  EXPECT_NE(second->Output().find("moving states to NVMe makes no room: first has ranks"),
            std::string::npos)
      << second->Output();
  first->Signal(SIGUSR1);
  ExpectDone(first.get(), hash);
}

}  // namespace demotion_test
}  // namespace tidepool::testing
