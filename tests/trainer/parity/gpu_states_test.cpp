// A server that does not take states on GPUs (here: because the ranks bring none) gets the job with
// all states on the host, where that was left to the run; else the run ends with the server's word.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>

#include "shm/spec/state_bytes.h"
#include "tests/trainer/parity/served_ranks.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace gpu_states_test {

SessionTask TaskWithStatesOnGpus(const ServedPlace& place, bool may_stay) {
  RunOptions options;
  options.model.preset = "tiny";
  RunPlan plan = MakeRunPlan(options, place.place.world, place.place.rank, "gpt").value();
  plan.spec.states_on_gpu = 1;
  SessionTask task{.server = options.server,
                   .job = options.job,
                   .spec = plan.spec,
                   .groups = plan.layout.data_groups};
  task.states_may_stay_on_host = may_stay;
  return task;
}

TEST(StatesOnGpus, StayOnTheHostWhereTheServerRefusesThem) {
  std::array<std::atomic<int>, 2> told = {};
  const Status ended = RunServedRanks(2, {}, [&told](const ServedPlace& place) -> Status {
    SessionTask task = TaskWithStatesOnGpus(place, true);
    task.say = [&told, rank = place.place.rank](const std::string& line) {
      if (line.starts_with("all states stay on the host: ")) ++told[rank];
    };
    TP_ASSIGN_OR_RETURN(const auto session, place.Open(std::move(task)));
    EXPECT_EQ(session->spec().states_on_gpu, 0U);
    EXPECT_EQ(session->service()->attachment().pool_bytes,
              client::StateBytesOf(session->spec()).total());
    return session->Close();
  });
  EXPECT_TRUE(ended.ok()) << ended.Format();
  for (const auto& lines : told) EXPECT_EQ(lines, 1) << "each rank is told once";
}

TEST(StatesOnGpus, ThatWereAskedForAreNotGivenUp) {
  const Status ended = RunServedRanks(1, {}, [](const ServedPlace& place) -> Status {
    return place.Open(TaskWithStatesOnGpus(place, false)).status();
  });
  EXPECT_EQ(ended.id(), ErrorId::kJobSpecBad) << ended.Format();
}

}  // namespace gpu_states_test
}  // namespace tidepool::trainer
