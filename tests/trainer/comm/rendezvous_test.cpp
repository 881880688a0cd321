#include "trainer/comm/meeting/rendezvous.h"

#include <cstdlib>
#include <initializer_list>
#include <utility>

#include <gtest/gtest.h>

#include "trainer/comm/solo_collective.h"

namespace tidepool::trainer {
namespace rendezvous_test {

constexpr const char* kVariables[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "TORCHELASTIC_RESTART_COUNT"};

class RendezvousFromEnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  Result<Rendezvous> With(std::initializer_list<std::pair<const char*, const char*>> variables) {
    SetUp();
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    return RendezvousFromEnv();
  }
};

TEST_F(RendezvousFromEnvTest, IsOneRankAloneWithoutVariables) {
  const auto meet = With({});
  ASSERT_TRUE(meet.ok());
  EXPECT_EQ(meet.value().rank, 0U);
  EXPECT_EQ(meet.value().world, 1U);
}

TEST_F(RendezvousFromEnvTest, ReadsTorchrunsVariables) {
  const auto meet = With({{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node-a"},
                          {"MASTER_PORT", "29501"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(meet.ok()) << meet.status().Format();
  EXPECT_EQ(meet.value().rank, 3U);
  EXPECT_EQ(meet.value().local_rank, 1U);
  EXPECT_EQ(meet.value().local_world, 2U);
  EXPECT_EQ(meet.value().host, "node-a");
  EXPECT_EQ(meet.value().port, 29501);
  EXPECT_FALSE(meet.value().serves_store);
  EXPECT_EQ(meet.value().prefix, "tidepool/attempt_2");
}

TEST_F(RendezvousFromEnvTest, LetsRankZeroServeWithoutAnAgent) {
  const auto zero = With(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(zero.ok());
  EXPECT_TRUE(zero.value().serves_store);
  const auto one = With(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(one.ok());
  EXPECT_FALSE(one.value().serves_store);
}

TEST_F(RendezvousFromEnvTest, NamesTheVariableThatIsMissingOrBad) {
  const auto no_port = With({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}});
  EXPECT_EQ(no_port.status().id(), ErrorId::kUsageError);
  EXPECT_NE(no_port.status().what().find("MASTER_PORT"), std::string::npos);
  const auto word = With({{"RANK", "one"}, {"WORLD_SIZE", "2"}});
  EXPECT_NE(word.status().what().find("RANK is 'one'"), std::string::npos) << word.status().what();
  const auto beyond = With({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(beyond.status().id(), ErrorId::kUsageError);
}

TEST(Loopback, IsToldFromOtherHosts) {
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("10.0.0.5"));
  EXPECT_FALSE(IsLoopback("node-a"));
}

TEST(SoloCollective, LeavesEveryValueAsItIs) {
  SoloCollective solo;
  float block[2] = {1, 2};
  const auto gather = solo.StartAllGather({block, 2, DType::kF32});
  const auto reduce = solo.StartReduceScatter({block, 2, DType::kF32});
  EXPECT_NE(gather, reduce);
  EXPECT_TRUE(solo.Test(reduce));
  EXPECT_TRUE(solo.Wait(gather).ok());
  EXPECT_TRUE(solo.Wait(reduce).ok());
  double sum = 3;
  EXPECT_TRUE(solo.SumDoubles(&sum, 1).ok());
  EXPECT_EQ(sum, 3);
  EXPECT_EQ(block[1], 2);
}

}  // namespace rendezvous_test
}  // namespace tidepool::trainer
