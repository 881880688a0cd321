#include "trainer/launch/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "trainer/launch/node_list.h"

namespace tidepool::trainer {
namespace rank_place_test {

using ::testing::HasSubstr;

constexpr int64_t kParent = 4711;

RankPlace Detect(const Environment& environment) {
  const auto place = DetectRank(environment, kParent);
  EXPECT_TRUE(place.ok()) << place.status().Format();
  return place.ok() ? place.value() : RankPlace();
}

std::string WhyNot(const Environment& environment) {
  const auto place = DetectRank(environment, kParent);
  EXPECT_FALSE(place.ok());
  EXPECT_EQ(place.status().id(), ErrorId::kUsageError);
  return place.status().what();
}

Environment Torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"GROUP_RANK", "1"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29501"},
          {"TORCHELASTIC_RUN_ID", "run/7"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
}

TEST(DetectRank, OneRankOfTorchrunKnowsTheStoreOfItsAgent) {
  Environment environment = Torchrun();
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) environment[name] = "1";
  for (const char* name : {"RANK", "LOCAL_RANK"}) environment[name] = "0";
  EXPECT_TRUE(Detect(environment).agent_serves_store);
  EXPECT_EQ(Detect(environment).master_port, 29501);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(Detect(environment).agent_serves_store);
  EXPECT_EQ(Detect(environment).master_port, 0);
}

TEST(DetectRank, AnEmptyEnvironmentIsOneRankAlone) {
  const RankPlace place = Detect({});
  EXPECT_EQ(place.rank, 0U);
  EXPECT_EQ(place.world, 1U);
  EXPECT_EQ(place.local_world, 1U);
  EXPECT_EQ(place.launcher, "none");
  EXPECT_EQ(place.job_name, "");
  EXPECT_EQ(place.master_port, 0);
}

TEST(DetectRank, TorchrunIsReadWhole) {
  const RankPlace place = Detect(Torchrun());
  EXPECT_EQ(place.rank, 5U);
  EXPECT_EQ(place.world, 8U);
  EXPECT_EQ(place.local_rank, 1U);
  EXPECT_EQ(place.local_world, 4U);
  EXPECT_EQ(place.node, 1U);
  EXPECT_EQ(place.master_host, "node0");
  EXPECT_EQ(place.master_port, 29501);
  EXPECT_EQ(place.restarts, 2U);
  EXPECT_TRUE(place.agent_serves_store);
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.job_name, "run-7");  // a slash may not stand in a job's name
}

TEST(DetectRank, TorchrunsNameForAllRunsIsNoName) {
  Environment environment = Torchrun();
  environment["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(Detect(environment).job_name, "torchrun-4711");
}

TEST(DetectRank, OurOwnLauncherIsToldFromTorchrun) {
  const RankPlace place = Detect({{"RANK", "1"},
                                  {"WORLD_SIZE", "2"},
                                  {"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", "40000"},
                                  {"TIDEPOOL_LAUNCH_ID", "launch-9-1"}});
  EXPECT_EQ(place.launcher, "trainer launch");
  EXPECT_EQ(place.job_name, "launch-9-1");
  EXPECT_EQ(place.local_rank, 1U);
  EXPECT_EQ(place.local_world, 2U);
  EXPECT_FALSE(place.agent_serves_store);
  EXPECT_EQ(place.done_mark, "");
}

// Its ranks meet by the launcher's name.
TEST(DetectRank, RanksOfOurOwnLauncherNeedNoPort) {
  const RankPlace place =
      Detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TIDEPOOL_LAUNCH_ID", "launch-9-1"}});
  EXPECT_EQ(place.run_id, "launch-9-1");
  EXPECT_EQ(place.master_port, 0);
  EXPECT_FALSE(place.agent_serves_store);
}

TEST(DetectRank, OnlyOurOwnLauncherIsToldThatARankIsDoneAndTellsOfOthers) {
  Environment environment = Torchrun();
  environment["TIDEPOOL_LAUNCH_DONE"] = "/proc/1/fd/3";  // of a launcher further up
  environment["TIDEPOOL_LAUNCH_ROLL"] = "/proc/1/fd/4";
  EXPECT_EQ(Detect(environment).done_mark, "");
  EXPECT_EQ(Detect(environment).roll, "");
  environment["TIDEPOOL_LAUNCH_ID"] = "launch-9-1";
  EXPECT_EQ(Detect(environment).done_mark, "/proc/1/fd/3");
  EXPECT_EQ(Detect(environment).roll, "/proc/1/fd/4");
}

TEST(DetectRank, RanksSetByHandAreNamedAfterTheirParent) {
  const RankPlace place = Detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(place.launcher, "RANK and WORLD_SIZE");
  EXPECT_EQ(place.job_name, "ranks-4711");
}

TEST(DetectRank, TheFirstMatchWins) {
  Environment environment = Torchrun();
  environment["SLURM_PROCID"] = "0";
  environment["SLURM_STEP_ID"] = "0";
  environment["SLURM_NTASKS"] = "2";
  environment["OMPI_COMM_WORLD_RANK"] = "0";
  EXPECT_EQ(Detect(environment).launcher, "torchrun");
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"})
    environment.erase(name);
  EXPECT_EQ(Detect(environment).launcher, "Slurm");
}

Environment SlurmTask() {
  return {{"SLURM_PROCID", "5"},
          {"SLURM_NTASKS", "6"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_TASKS_PER_NODE", "4,2"},
          {"SLURM_STEP_NODELIST", "gpu[08-09]"}};
}

TEST(DetectRank, ATaskOfSrun) {
  const RankPlace place = Detect(SlurmTask());
  EXPECT_EQ(place.launcher, "Slurm");
  EXPECT_EQ(place.rank, 5U);
  EXPECT_EQ(place.world, 6U);
  EXPECT_EQ(place.local_rank, 1U);
  EXPECT_EQ(place.local_world, 2U);
  EXPECT_EQ(place.node, 1U);
  EXPECT_EQ(place.master_host, "gpu08");
  EXPECT_GE(place.master_port, 20000);
  EXPECT_LT(place.master_port, 32000);
  EXPECT_EQ(place.job_name, "slurm-77");
}

TEST(DetectRank, AllTasksOfAStepDeriveOnePortAndAnotherJobAnother) {
  Environment other_task = SlurmTask();
  other_task["SLURM_PROCID"] = "0";
  other_task["SLURM_LOCALID"] = "0";
  other_task["SLURM_NODEID"] = "0";
  EXPECT_EQ(Detect(SlurmTask()).master_port, Detect(other_task).master_port);
  other_task["SLURM_JOB_ID"] = "78";
  EXPECT_NE(Detect(SlurmTask()).master_port, Detect(other_task).master_port);
}

TEST(DetectRank, ABatchScriptWithoutSrunIsAlone) {
  Environment environment = SlurmTask();
  environment.erase("SLURM_STEP_ID");
  const RankPlace place = Detect(environment);
  EXPECT_EQ(place.launcher, "none");
  EXPECT_EQ(place.world, 1U);
  EXPECT_EQ(place.job_name, "slurm-77");
}

TEST(DetectRank, MasterVariablesWinOverWhatIsDerived) {
  Environment environment = SlurmTask();
  environment["MASTER_ADDR"] = "login";
  environment["MASTER_PORT"] = "1234";
  EXPECT_EQ(Detect(environment).master_host, "login");
  EXPECT_EQ(Detect(environment).master_port, 1234);
}

TEST(DetectRank, OpenMpiOnOneNodeNeedsNoMaster) {
  const RankPlace place = Detect({{"OMPI_COMM_WORLD_RANK", "1"},
                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                  {"PMIX_NAMESPACE", "prterun-host-1@1"}});
  EXPECT_EQ(place.launcher, "Open MPI");
  EXPECT_EQ(place.rank, 1U);
  EXPECT_EQ(place.master_host, "127.0.0.1");
  EXPECT_GT(place.master_port, 0);
  EXPECT_EQ(place.job_name, "ranks-4711");
}

TEST(DetectRank, MpiOverSeveralNodesMustBeToldTheMaster) {
  const Environment environment{{"PMI_RANK", "1"},
                                {"PMI_SIZE", "4"},
                                {"MPI_LOCALRANKID", "1"},
                                {"MPI_LOCALNRANKS", "2"},
                                {"MASTER_PORT", "3000"}};
  EXPECT_THAT(WhyNot(environment), HasSubstr("MASTER_ADDR"));
  Environment told = environment;
  told["MASTER_ADDR"] = "node0";
  EXPECT_EQ(Detect(told).launcher, "PMI");
  EXPECT_EQ(Detect(told).master_port, 3000);
}

TEST(DetectRank, EveryBrokenVariableIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                           "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}) {
    for (const char* value : {"x", "-1", "3 ", "99999999999999999999"}) {
      Environment environment = Torchrun();
      environment[name] = value;
      EXPECT_THAT(WhyNot(environment), HasSubstr(name)) << value;
    }
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    Environment environment = Torchrun();
    environment.erase(name);
    EXPECT_THAT(WhyNot(environment), HasSubstr(name));
  }
}

TEST(DetectRank, ImpossibleRanksAreRefused) {
  for (const auto& [name, value] : {std::pair{"RANK", "8"},
                                    {"LOCAL_RANK", "4"},
                                    {"LOCAL_WORLD_SIZE", "9"},
                                    {"WORLD_SIZE", "0"}}) {
    Environment environment = Torchrun();
    environment[name] = value;
    EXPECT_THAT(WhyNot(environment), HasSubstr("not possible")) << name;
  }
}

TEST(JobNameFrom, KeepsWhatMemserverAcceptsAndNoMore) {
  EXPECT_EQ(JobNameFrom("a.B_9-z"), "a.B_9-z");
  EXPECT_EQ(JobNameFrom("a b/c\n"), "a-b-c-");
  EXPECT_EQ(JobNameFrom(std::string(200, 'x')).size(), 63U);
}

TEST(NodeList, FirstNode) {
  EXPECT_EQ(FirstNode("gpu7"), "gpu7");
  EXPECT_EQ(FirstNode("gpu7,gpu[1-3]"), "gpu7");
  EXPECT_EQ(FirstNode("gpu[007-010,12],login1"), "gpu007");
  EXPECT_EQ(FirstNode("r[3,5]n1,x"), "r3n1");
  for (const char* bad : {"", "gpu[1-3", "gpu[]", "gpu[a-b]", "r[1]n[2-3]"})
    EXPECT_EQ(FirstNode(bad), "") << bad;
}

TEST(NodeList, TasksOnNode) {
  EXPECT_EQ(TasksOnNode("4", 0), 4U);
  EXPECT_EQ(TasksOnNode("4(x3),2", 2), 4U);
  EXPECT_EQ(TasksOnNode("4(x3),2", 3), 2U);
  EXPECT_EQ(TasksOnNode("4(x3),2", 4), 0U);
  for (const char* bad : {"", "x", "4(x", "4(x2", "4;2"}) EXPECT_EQ(TasksOnNode(bad, 1), 0U) << bad;
}

TEST(ReadEnvironment, SeesThisProcess) {
  setenv("TIDEPOOL_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(ReadEnvironment().at("TIDEPOOL_TEST_VARIABLE"), "a=b");
  unsetenv("TIDEPOOL_TEST_VARIABLE");
}

}  // namespace rank_place_test
}  // namespace tidepool::trainer
