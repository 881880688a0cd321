// Jobs with default threads that compute on the same CPUs: each sees the other, and from then on
// waits for its own threads only shortly.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace default_threads_test {

class DefaultThreads : public TrainerRuns {
 protected:
  ~DefaultThreads() override { KillDaemon(server_.socket_dir()); }

  Flags FlagsOf(const std::string& job) const {
    return {{"--job", job}, {"--threads", "0"}, {"--socket-dir", server_.socket_dir()}};
  }

  std::unique_ptr<ChildProcess> StartEndless(const std::string& job) const {
    Flags flags = FlagsOf(job);
    flags.insert({{"--steps", "10000000"}, {"--eval-every", "0"}});
    return Start(Words(job, flags));
  }

  // True when the last step that was reported says that the CPUs are shared.
  bool SaysShared(const std::string& job) const {
    std::ifstream file(Out(job) + "/metrics.jsonl");
    std::string last;
    for (std::string line; std::getline(file, line) && !file.eof();) last = line;
    return last.find("\"cpus_shared\":true") != std::string::npos;
  }

  static uint64_t ThreadsOf(const ChildProcess& trainer) {
    std::error_code error;
    const std::filesystem::directory_iterator tasks(
        "/proc/" + std::to_string(trainer.pid()) + "/task", error);
    return static_cast<uint64_t>(std::distance(begin(tasks), end(tasks)));
  }

  // Waits for the condition; false when it does not hold within the limit.
  template <typename Condition>
  static bool WaitFor(Condition condition) {
    SteadyClock clock;
    for (const int64_t end = clock.NowNs() + kRunNs; clock.NowNs() < end;
         clock.SleepNs(20 * kNsPerMs)) {
      if (condition()) return true;
    }
    return false;
  }

  const uint64_t cpus_ = std::max(1U, std::thread::hardware_concurrency());
  MemserverProcess server_{{"--keeper", "process", "--lease", "60s"}};
};

TEST_F(DefaultThreads, TwoJobsSeeEachOtherAndSleepInsteadOfSpinning) {
  const auto first = StartEndless("first"), second = StartEndless("second");
  if (cpus_ == 1) return;  // one thread waits for nobody
  for (const auto& [job, trainer] :
       {std::pair("first", first.get()), std::pair("second", second.get())}) {
    EXPECT_TRUE(WaitFor([&, name = job] { return SaysShared(name); }))
        << job << ": " << trainer->Output();
    // Its compute threads, and beside them the team that makes libgomp's threads outnumber the
    // CPUs.
    EXPECT_TRUE(WaitFor([&, process = trainer] { return ThreadsOf(*process) >= 2 * cpus_ + 1; }))
        << job << " has " << ThreadsOf(*trainer);
  }
}

// What else runs decides how threads wait, but not what they compute.
TEST_F(DefaultThreads, AJobBesideAnotherTrainsWithTheBitsOfOneAlone) {
  ExpectDone(Start(Words("alone", FlagsOf("a"))).get());
  const auto other = StartEndless("other");
  ASSERT_TRUE(WaitForLines("other", 3, other.get())) << other->Output();
  ExpectDone(Start(Words("beside", FlagsOf("a"))).get());
  ExpectSame("beside", "alone");
}

}  // namespace default_threads_test
}  // namespace tidepool::testing
