// A thousand ranks that are attached and do nothing, and 64 jobs that train beside them: nobody is
// refused or loses a bit, and when the process of the thousand is killed, all that they held is
// back at once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "client/mem_client.h"
#include "tests/fakes/real_clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace crowd_test {

constexpr int64_t kLimit = 60 * int64_t{1000000000};
#ifdef TIDEPOOL_SANITIZED
constexpr uint32_t kIdleJobs = 4, kTrainers = 8;
#else
constexpr uint32_t kIdleJobs = 20, kTrainers = 64;
#endif
constexpr uint32_t kIdleRanks = 50;  // of a job

ThinOptions IdleJob(const std::string& socket_dir, uint32_t number) {
  ThinOptions options;
  options.socket_dir = socket_dir;
  options.name = "idle-" + std::to_string(number);
  options.world = kIdleRanks;
  options.chunks = 1;
  options.chunk_elements = 16 * kIdleRanks;
  return options;
}

// Attaches every rank of all idle jobs, says so with one byte, and sits there until it is killed.
// In a child.
[[noreturn]] void SitThere(const std::string& socket_dir, int ready) {
  client::ClientOptions connect;
  connect.clock = RealClock();
  connect.socket_dir = socket_dir;
  std::vector<std::unique_ptr<client::MemClient>> sessions;
  for (uint32_t number = 0; number < kIdleJobs; ++number) {
    const shm::JobSpec spec = SpecOf(IdleJob(socket_dir, number));
    for (Rank rank = 0; rank < kIdleRanks; ++rank) {
      auto session = client::MemClient::Connect(connect, spec, rank);
      if (!session.ok()) {
        const std::string why = session.status().Format();
        [[maybe_unused]] const auto told = write(STDERR_FILENO, why.data(), why.size());
        _exit(1);
      }
      sessions.push_back(std::move(session).value());
    }
  }
  [[maybe_unused]] const auto said = write(ready, "r", 1);
  for (;;) pause();
}

TEST(Crowd, AThousandIdleRanksAnd64TrainersHoldUpNobodyAndTheirDeathLeavesNothing) {
  MemserverProcess server({"--sessions-max", "1200", "--jobs-max", "128", "--pool", "64MiB",
                           "--rcache-limit", "128MiB"});
  const OpenDescriptors before = SettledDescriptorsOf(server.socket_dir());
  ChildProcess alone(ThinCommand(server.socket_dir(), {"--name", "alone"}));
  ASSERT_EQ(alone.Wait(kLimit)->exit_code, 0) << alone.Output();

  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t crowd = fork();
  ASSERT_GE(crowd, 0);
  if (crowd == 0) SitThere(server.socket_dir(), write_end.get());
  write_end.Reset();
  char ready = 0;
  ASSERT_EQ(read(read_end.get(), &ready, 1), 1) << "a rank was refused";
  EXPECT_EQ(HoldingsOf(server.socket_dir()).sessions, kIdleJobs * kIdleRanks);

  std::vector<std::unique_ptr<ChildProcess>> trainers;
  for (uint32_t i = 0; i < kTrainers; ++i) {
    trainers.push_back(std::make_unique<ChildProcess>(
        ThinCommand(server.socket_dir(), {"--name", "trains-" + std::to_string(i)})));
  }
  for (const auto& trainer : trainers) {
    const auto end = trainer->Wait(kLimit);
    ASSERT_TRUE(end && end->exit_code == 0) << trainer->Output();
    EXPECT_EQ(trainer->Output(), alone.Output()) << "the same bits";
  }
  EXPECT_EQ(HoldingsOf(server.socket_dir()).sessions, kIdleJobs * kIdleRanks);
  EXPECT_EQ(NumberIn(AskAdmin(server.socket_dir(), "/v1/status"), "sessions_ended_badly"), 0);

  kill(crowd, SIGKILL);
  ASSERT_EQ(waitpid(crowd, nullptr, 0), crowd);
  EXPECT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kPromptNs), kNothing);
  EXPECT_EQ(WaitForDescriptors(server.socket_dir(), before, kLimit), before)
      << WaitForDescriptors(server.socket_dir(), before, 0).Text() << "\nbefore:\n"
      << before.Text();
  EXPECT_TRUE(server.StopsCleanly()) << server.process().Output();
}

}  // namespace crowd_test
}  // namespace tidepool::testing
