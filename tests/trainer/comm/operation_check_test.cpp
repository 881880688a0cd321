// What ranks say of their operations, one by one (OperationCheck) and once a pass (OperationOrder).
#include "trainer/comm/operation_check.h"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/comm/local_ranks.h"
#include "trainer/comm/operation_order.h"

namespace tidepool::trainer {
namespace operation_check_test {

constexpr OperationName kUp{.chunk = 5, .place = 12, .of = "h.3.mlp.up.weight"};
constexpr OperationName kDown{.chunk = 6, .place = 12, .of = "h.3.mlp.down.weight"};

TEST(OperationTag, SaysWhatItIsFor) {
  EXPECT_EQ(TagOf(OperationKind::kAllGather, kUp).Text(),
            "all-gather of chunk 5 (h.3.mlp.up.weight), place 12 of its pass");
  EXPECT_EQ(TagOf(OperationKind::kBarrier, {}).Text(), "barrier");
  const std::string name = "model.layers.31.mlp.experts.7.gate_proj.weight";
  const OperationTag end = TagOf(OperationKind::kAllGather, {.chunk = 1, .of = name});
  EXPECT_NE(end.Text().find("experts.7.gate_proj.weight)"), std::string::npos) << end.Text();
  OperationTag wild;
  std::memset(static_cast<void*>(&wild), 0xFF, sizeof wild);
  EXPECT_NE(wild.Text().find("operation of kind 4294967295"), std::string::npos);
}

// Each rank's check, with what all of them say.
Status VerdictOf(const std::vector<OperationCheck>& said, uint32_t rank) {
  std::vector<OperationCheck> checks = said;
  for (uint32_t other = 0; other < checks.size(); ++other) {
    std::memcpy(checks[rank].all() + other * checks[rank].statement_bytes(), checks[other].own(),
                checks[other].statement_bytes());
  }
  return checks[rank].Verdict();
}

TEST(OperationCheck, AllRanksComeToTheSameVerdict) {
  const OperationTag up = TagOf(OperationKind::kAllGather, kUp),
                     down = TagOf(OperationKind::kAllGather, kDown);
  const std::vector<uint64_t> bytes(3, 64);
  const std::vector<OperationCheck> alike(3, {up, bytes, bytes});
  std::vector<OperationCheck> apart = alike, unequal = alike;
  apart[2] = {down, bytes, bytes};
  unequal[1] = {up, bytes, {64, 64, 80}};

  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(VerdictOf(alike, rank).ok());
    const Status tags = VerdictOf(apart, rank), sizes = VerdictOf(unequal, rank);
    EXPECT_EQ(tags.id(), ErrorId::kCollectiveFailed);
    EXPECT_EQ(tags.what(), "ranks are in different operations: rank 0 in " + up.Text() +
                               ", rank 2 in " + down.Text());
    EXPECT_EQ(sizes.what(), "ranks differ in " + up.Text() +
                                ": rank 2 sends 64 bytes to rank 1, which expects 80");
  }
}

TEST(OperationOrder, RanksThatDoTheSameGoOn) {
  RunGroup(3, "order", [](std::unique_ptr<Collective> group) {
    OperationOrder order;
    for (int pass = 0; pass < 3; ++pass) {
      for (int i = 0; i < pass; ++i) order.Add(TagOf(OperationKind::kAllGather, kUp), 64);
      const Status alike = order.Compare(group.get());
      EXPECT_TRUE(alike.ok()) << alike.Format();
    }
  });
}

TEST(OperationOrder, TheFirstDifferenceIsNamedOnAllRanks) {
  struct Case {
    std::function<void(OperationOrder*)> last;
    std::string text;
  };
  const OperationTag up = TagOf(OperationKind::kAllGather, kUp),
                     down = TagOf(OperationKind::kReduceScatter, kDown);
  const std::string at_two = "at number 2 since they were last compared rank 0 has started ";
  const std::vector<Case> cases = {
      {[&](OperationOrder* order) { order->Add(down, 64); },
       at_two + up.Text() + " (64 bytes), rank 1 has started " + down.Text() + " (64 bytes)"},
      {[&](OperationOrder* order) { order->Add(up, 80); },
       at_two + up.Text() + " (64 bytes), rank 1 has started " + up.Text() + " (80 bytes)"},
      {[](OperationOrder*) {}, at_two + up.Text() + " (64 bytes), rank 1 has started nothing more"},
  };

  for (const Case& one : cases) {
    RunGroup(2, "order", [&](std::unique_ptr<Collective> group) {
      OperationOrder order;
      order.Add(up, 64);
      if (group->rank() == 0) order.Add(up, 64);
      if (group->rank() == 1) one.last(&order);
      const Status differ = order.Compare(group.get());
      EXPECT_EQ(differ.id(), ErrorId::kCollectiveFailed);
      EXPECT_NE(differ.what().find(one.text), std::string::npos) << differ.Format();
    });
  }
}

TEST(OperationOrder, CoversMoreThanItKeeps) {
  RunGroup(2, "order", [](std::unique_ptr<Collective> group) {
    OperationOrder order;
    const OperationTag up = TagOf(OperationKind::kAllGather, kUp);
    for (uint64_t i = 0; i < kOperationsKept; ++i) order.Add(up, 64);
    order.Add(up, group->rank());
    const Status differ = order.Compare(group.get());
    EXPECT_NE(differ.what().find("behind the first 65536"), std::string::npos) << differ.Format();
  });
}

}  // namespace operation_check_test
}  // namespace tidepool::trainer
