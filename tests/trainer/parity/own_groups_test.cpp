// What a caller does together with the other ranks while an engine's transfers are in flight.
#include <gtest/gtest.h>

#include <vector>

#include "tests/trainer/parity/rig.h"
#include "tests/trainer/parity/served_ranks.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace own_groups_test {

// Chunks arrive when they do: one rank starts an all-gather before the sum, the other one behind
// it.
TEST(OwnGroups, ASumBetweenTransfersMeetsTheSumOfTheOtherRanks) {
  const RigOptions rig = DefaultRig();
  const Status ended = RunServedRanks(2, {}, [&rig](const ServedPlace& at) -> Status {
    TP_ASSIGN_OR_RETURN(const RunPlan plan,
                        MakeRunPlan(rig.shape, rig.run, 2, at.place.rank, "own-groups"));
    SessionTask task{.server = rig.run.server,
                     .job = rig.run.job,
                     .spec = plan.spec,
                     .groups = plan.layout.data_groups};
    TP_ASSIGN_OR_RETURN(const std::unique_ptr<RunSession> session, at.Open(std::move(task)));
    Collective* const transfers = session->groups().front();
    std::vector<float> block(2, static_cast<float>(at.place.rank + 1));
    double sum = at.place.rank + 1;

    Collective::Ticket gather = 0;
    const BlockView view{block.data(), 1, DType::kF32};
    if (at.place.rank == 0) gather = transfers->StartAllGather(view);
    TP_RETURN_IF_ERROR(session->world()->SumDoubles(&sum, 1));
    if (at.place.rank == 1) gather = transfers->StartAllGather(view);
    TP_RETURN_IF_ERROR(transfers->Wait(gather));
    EXPECT_EQ(sum, 3);
    EXPECT_EQ(block, (std::vector<float>{1, 2}));
    return session->Close();
  });
  EXPECT_TRUE(ended.ok()) << ended.Format();
}

}  // namespace own_groups_test
}  // namespace tidepool::trainer
