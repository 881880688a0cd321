// Who tells a trainer's GPU that a fetch is there, with whole processes over the stand-in for the
// CUDA driver: what memserver measures when it opens a GPU whose compute queues several processes
// have in turns, and jobs, deaths and restarts with either way.
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"

namespace tidepool::testing {
namespace gpu_done_test {

using Strings = std::vector<std::string>;

class DoneWord : public DurableDaemon, public ::testing::WithParamInterface<std::string> {
 protected:
  Strings WithGpu(const Strings& more = {}) const {
    Strings environment{"LD_LIBRARY_PATH=" TIDEPOOL_FAKE_CUDA_FOLDER};
    environment.insert(environment.end(), more.begin(), more.end());
    return environment;
  }
  Strings Token() const { return WithGpu({"FAKE_CUDA_TOKEN=" + directory_.path() + "/token"}); }
  static std::string Says(const std::string& way) { return "\"done_by\":\"" + way + "\""; }
  Process TrainOnGpu(const Strings& environment, const Strings& more = {}) const {
    Strings all{"--device", "cuda"};
    all.insert(all.end(), more.begin(), more.end());
    return Train(all, environment);
  }
};

TEST_F(DoneWord, IsTheLoopsWhereAStreamsWordWaitsForAnotherProcesssKernels) {
  const std::string expected = UndisturbedHash();
  const Process server = Serve({}, Token());
  ExpectDone(TrainOnGpu(Token(), {"--pause-ms", "0"}).get(), expected);
  EXPECT_TRUE(server->WaitForOutput(Says("loop"), kLimit)) << server->Output();
  EXPECT_TRUE(server->WaitForOutput("with a stream's word behind it", kLimit))
      << "the log says why: " << server->Output();
}

TEST_F(DoneWord, IsTheStreamsWhereItComesWithTheCopy) {
  const std::string expected = UndisturbedHash();
  const Process server = Serve({}, WithGpu());
  ExpectDone(TrainOnGpu(WithGpu(), {"--pause-ms", "0"}).get(), expected);
  EXPECT_TRUE(server->WaitForOutput(Says("stream"), kLimit)) << server->Output();
  EXPECT_TRUE(server->WaitForOutput("with a stream's word behind it", kLimit)) << server->Output();
}

TEST_F(DoneWord, IsTheLoopsWhereNothingCanBeMeasured) {
  const Process server = Serve({}, WithGpu({"FAKE_CUDA_FAIL=cuModuleLoadData:1:209"}));
  ExpectDone(TrainOnGpu(WithGpu(), {"--pause-ms", "0"}).get(), UndisturbedHash());
  EXPECT_TRUE(server->WaitForOutput(Says("loop"), kLimit)) << server->Output();
  EXPECT_TRUE(server->WaitForOutput("not measured", kLimit)) << server->Output();
}

INSTANTIATE_TEST_SUITE_P(Either, DoneWord, ::testing::Values("stream", "loop"),
                         [](const auto& way) { return way.param; });

TEST_P(DoneWord, IsWrittenAsTheFlagSays) {
  const Process server = Serve({"--gpu-done", GetParam()}, Token());
  ExpectDone(TrainOnGpu(Token(), {"--pause-ms", "0"}).get(), UndisturbedHash());
  EXPECT_TRUE(server->WaitForOutput(Says(GetParam()), kLimit)) << server->Output();
  EXPECT_TRUE(server->WaitForOutput("as --gpu-done says", kLimit)) << server->Output();
}

// Behind the copy, before the word: the fetch is asked for again.
TEST_P(DoneWord, MayBeMissingWhenTheServerDiesAndTheBitsAreTheSame) {
  const std::string expected = UndisturbedHash();
  const std::string point =
      GetParam() == "loop" ? "server.fetch_passed:20" : "server.fetch_copied:20";
  const Process first = Serve({"--gpu-done", GetParam()},
                              WithGpu({"TIDEPOOL_KILL_AT=" + point, "FAKE_CUDA_SLOW_US=200"}));
  const Process trainer = TrainOnGpu(WithGpu(), {"--pause-ms", "1"});
  const auto killed = first->Wait(kLimit);
  ASSERT_TRUE(killed.has_value()) << "nobody passed " << point << trainer->Output();
  EXPECT_EQ(killed->signal, SIGKILL);
  ExpectDone(trainer.get(), expected);
}

TEST_P(DoneWord, OfAKilledTrainerIsWaitedForByNobody) {
  const Process server = Serve({"--gpu-done", GetParam()}, WithGpu({"FAKE_CUDA_SLOW_US=300"}));
  const Process killed = TrainOnGpu(WithGpu(), {"--norms", "--persistent"});
  ASSERT_TRUE(killed->WaitForOutput("norm 5 ", kLimit)) << killed->Output();
  killed->Signal(SIGKILL);
  ASSERT_TRUE(killed->Wait(kLimit).has_value());
  ExpectDone(TrainOnGpu(WithGpu(), {"--persistent"}).get(), UndisturbedHash());
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
}

}  // namespace gpu_done_test
}  // namespace tidepool::testing
