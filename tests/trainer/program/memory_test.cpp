// No rank ever holds the whole model: what a rank needs grows with its rCache, not with the
// parameters.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace memory_test {

// The largest resident set of all children that have ended; it never shrinks, so smaller runs must
// come first.
uint64_t PeakOfChildren() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * kKiB;
}

uint64_t PeakOfRun(const std::string& socket_dir, const std::string& preset,
                   const std::string& rcache) {
  ChildProcess trainer({TIDEPOOL_TRAINER, "run", "--socket-dir", socket_dir, "--preset", preset,
                        "--rcache", rcache, "--steps", "2", "--batch", "1", "--context", "16",
                        "--eval-every", "0", "--threads", "1", "--quiet"});
  const auto end = trainer.Wait(120 * kNsPerSecond);
  EXPECT_TRUE(end && end->exit_code == 0) << trainer.Output();
  return PeakOfChildren();
}

TEST(TrainerMemory, GrowsWithTheRcacheNotWithTheModel) {
  // Bytes of the preset's weights; the smallest preset's are 0.5 MB.
  constexpr uint64_t kWeights = 10'843'392 * sizeof(float);
  MemserverProcess server({"--pool", "192MiB", "--rcache-limit", "64MiB"});
  const uint64_t smallest = PeakOfRun(server.socket_dir(), "tiny", "100%");
  const uint64_t small_rcache = PeakOfRun(server.socket_dir(), "quickstart", "15%");
  const uint64_t whole_rcache = PeakOfRun(server.socket_dir(), "quickstart", "100%");
  RecordProperty("megabytes", std::to_string(smallest >> 20) + " " +
                                  std::to_string(small_rcache >> 20) + " " +
                                  std::to_string(whole_rcache >> 20));
  // It holds three blocks of the rCache, activations, and LibTorch's code for larger matrices, but
  // not the model.
  EXPECT_LT(small_rcache, smallest + kWeights * 3 / 4);
  EXPECT_GT(whole_rcache, small_rcache + kWeights / 2)
      << "the measure does not see weights, so the line above says nothing";
}

}  // namespace memory_test
}  // namespace tidepool::testing
