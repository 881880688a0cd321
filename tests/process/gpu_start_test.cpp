// When memserver opens GPUs, with whole processes over the stand-in for the CUDA driver: there a
// context, a module and registered memory take so long that other calls of the process stand still,
// as they do with the driver.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"

namespace tidepool::testing {
namespace gpu_start_test {

using Strings = std::vector<std::string>;

constexpr double kStallSeconds = 1;

class GpuStart : public DurableDaemon {
 protected:
  static Strings WithGpus(const Strings& more = {}) {
    Strings environment{"LD_LIBRARY_PATH=" TIDEPOOL_FAKE_CUDA_FOLDER, "FAKE_CUDA_GPUS=2"};
    environment.insert(environment.end(), more.begin(), more.end());
    return environment;
  }
  Process ServeGpus(const std::string& when) const {
    return Serve({"--pool", "32MiB", "--gpu", when, "--gpu-done", "loop"},
                 WithGpus({"FAKE_CUDA_STALL_MS=1000"}));
  }
  Process TrainOn(const std::string& gpu, const Strings& more) const {
    Strings all{"--device", "cuda", "--name", "on" + gpu};
    all.insert(all.end(), more.begin(), more.end());
    return Train(all, WithGpus({"CUDA_VISIBLE_DEVICES=" + gpu}));
  }
  // A number of /v1/status.
  double Status(const std::string& key) const {
    const std::string text = Memctl({"status", "-o", "json"});
    const size_t at = text.find("\"" + key + "\"");
    if (at == std::string::npos) ADD_FAILURE() << key << " is not in " << text;
    return at == std::string::npos ? 0
                                   : std::strtod(text.c_str() + text.find(':', at) + 1, nullptr);
  }
  struct Turns {
    double longest_seconds = 0, long_ones = 0;
  };
  // The loop's long turns while a job trains on one GPU and another one comes on the other.
  Turns TurnsWith(const std::string& when) const {
    const Process server = ServeGpus(when);
    const Process stays = TrainOn("0", {"--norms", "--steps", "100000", "--pause-ms", "0"});
    EXPECT_TRUE(stays->WaitForOutput("norm 2 ", kLimit)) << stays->Output();
    ExpectDone(TrainOn("1", {"--pause-ms", "0"}).get(), UndisturbedHash());
    return {Status("longest_turn_seconds"), Status("long_turns")};
  }
};

TEST_F(GpuStart, NothingThatStallsTheDriverIsLeftForWhenOthersTrain) {
  EXPECT_LT(TurnsWith("auto").longest_seconds, kStallSeconds);
}

TEST_F(GpuStart, WhoOpensThemWhenTheyAreUsedSeesInTheStatusWhatThatCosts) {
  const Turns turns = TurnsWith("when-used");
  EXPECT_GE(turns.longest_seconds, kStallSeconds * 0.9);
  EXPECT_GE(turns.long_ones, 1);
}

TEST_F(GpuStart, AGpuThatCannotBeOpenedYetIsOpenedForTheFirstRankThatComesForIt) {
  const Process server =
      Serve({"--gpu-done", "loop"}, WithGpus({"FAKE_CUDA_FAIL=cuDevicePrimaryCtxRetain:1:2"}));
  EXPECT_TRUE(server->WaitForOutput("is tried again when a rank comes", kLimit))
      << server->Output();
  ExpectDone(TrainOn("0", {"--pause-ms", "0"}).get(), UndisturbedHash());
}

}  // namespace gpu_start_test
}  // namespace tidepool::testing
