// Saves of several jobs and users at once: whose begins, whose waits, and that nobody else's
// updates do.
#include "memserver/jobs/saves/save_lanes.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memserver/jobs/job_desk.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace save_lanes_test {

constexpr uint32_t kUser = 1000, kOther = 1001;

// Jobs of one rank at version 1, each of which can be saved.
class Jobs {
 public:
  explicit Jobs(const WorldOptions& options = {}) : world(options) {}
  SmallTrainer* Add(const std::string& name, uint32_t uid) {
    trainers_.push_back(std::make_unique<SmallTrainer>(&world, MakeSpec({.name = name})));
    SmallTrainer* trainer = trainers_.back().get();
    EXPECT_TRUE(trainer->JoinAll(uid));
    trainer->PutWeights(1);
    trainer->Step({.seed = 1});
    world.Settle();
    return trainer;
  }
  // The saves that have begun are in `begun` behind it.
  void Save(SmallTrainer* trainer) {
    world.Post(SaveWeights{trainer->rank(0).connection(), UniqueFd(), "w", trainer->version()});
    Settle();
  }
  void Settle() {
    world.Settle();
    for (SaveRequest& request : world.TakeSaves()) begun.push_back(std::move(request));
  }
  // The first of the saves that have begun is answered; its thread comes back, or stays in its file
  // system.
  void End(bool comes_back) {
    world.AnswerSave(begun.front().connection, Status());
    if (!comes_back) stuck.push_back(std::move(begun.front()));
    begun.erase(begun.begin());
    Settle();
  }
  bool IsHeld(const std::string& name) const {
    return world.tables().FindJob(name)->updates.held();
  }

  ServeWorld world;
  std::vector<SaveRequest> begun, stuck;

 private:
  std::vector<std::unique_ptr<SmallTrainer>> trainers_;
};

// A user with as many saves in work as it may have, and one job more.
struct FullLanes : Jobs {
  FullLanes() {
    for (size_t i = 0; i < SaveLanes::kOfUser; ++i) Save(Add("job" + std::to_string(i), kUser));
    EXPECT_EQ(begun.size(), SaveLanes::kOfUser);
    last = Add("last", kUser);
  }
  SmallTrainer* last;
};

TEST(SavesOfUsers, AUserWhoseSavesDoNotEndHoldsUpNoOther) {
  FullLanes jobs;
  SmallTrainer* other = jobs.Add("other", kOther);
  EXPECT_FALSE(jobs.IsHeld("other"));
  jobs.Save(other);
  ASSERT_EQ(jobs.begun.size(), SaveLanes::kOfUser + 1);
  EXPECT_TRUE(jobs.IsHeld("other"));
  jobs.world.AnswerSave(jobs.begun.back().connection, Status());
  jobs.Settle();
  EXPECT_FALSE(jobs.IsHeld("other"));
  other->Step({.seed = 2});
  EXPECT_EQ(other->Compare(1e-5), "");
}

TEST(SavesOfUsers, AnotherJobOfTheUserTrainsOn) {
  FullLanes jobs;
  jobs.last->Step({.seed = 2});
  jobs.last->Step({.seed = 3});
  EXPECT_EQ(jobs.last->Compare(1e-5), "");
}

TEST(SavesOfUsers, ASaveThatWaitsHoldsNoUpdatesAndBeginsWhenOneHasEnded) {
  FullLanes jobs;
  jobs.Save(jobs.last);
  EXPECT_EQ(jobs.begun.size(), SaveLanes::kOfUser);
  EXPECT_FALSE(jobs.IsHeld("last"));
  jobs.world.clock().Advance(SaveLanes::kWaitNs / 2);
  jobs.End(/*comes_back=*/true);
  ASSERT_EQ(jobs.begun.size(), SaveLanes::kOfUser);
  EXPECT_EQ(jobs.begun.back().connection, jobs.last->rank(0).connection());
  EXPECT_GE(jobs.begun.back().waited_ns, SaveLanes::kWaitNs / 2) << "of the time that the save has";
  EXPECT_TRUE(jobs.IsHeld("last"));
}

TEST(SavesOfUsers, AWaitHasAnEndAndNamesWhatIsInWork) {
  FullLanes jobs;
  jobs.Save(jobs.last);
  EXPECT_FALSE(jobs.world.TakeReply<SaveDone>());
  jobs.world.clock().Advance(SaveLanes::kWaitNs);
  jobs.Settle();
  const auto done = jobs.world.TakeReply<SaveDone>();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->connection, jobs.last->rank(0).connection());
  EXPECT_EQ(done->result.id(), ErrorId::kSaveFailed);
  EXPECT_NE(done->result.Format().find("'w' of job3"), std::string::npos) << done->result.Format();
  jobs.last->Step({.seed = 2});
  EXPECT_EQ(jobs.last->Compare(1e-5), "") << "it trains on";
}

TEST(SavesOfUsers, WhereAllFileSystemsHaveBeenGivenUpTheNextSaveIsRefusedAtOnce) {
  FullLanes jobs;
  while (!jobs.begun.empty()) jobs.End(/*comes_back=*/false);
  while (jobs.world.TakeReply<SaveDone>()) {
  }
  jobs.Save(jobs.last);
  EXPECT_TRUE(jobs.begun.empty());
  const auto refused = jobs.world.TakeReply<SaveDone>();
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->result.Format().find("given up"), std::string::npos)
      << refused->result.Format();
  jobs.stuck.pop_back();  // one answers after all
  jobs.Save(jobs.last);
  EXPECT_EQ(jobs.begun.size(), 1U);
}

TEST(SavesOfUsers, ARankThatIsLostTakesItsWaitingSaveWithIt) {
  FullLanes jobs;
  jobs.Save(jobs.last);
  jobs.world.Lose(jobs.last->rank(0));
  jobs.Settle();
  jobs.End(/*comes_back=*/true);
  EXPECT_EQ(jobs.begun.size(), SaveLanes::kOfUser - 1);
}

TEST(SavesOfUsers, TheFirstToAskIsTheFirstToBegin) {
  FullLanes jobs;
  SmallTrainer* later = jobs.Add("later", kUser);
  jobs.Save(later);
  jobs.Save(jobs.last);
  jobs.End(/*comes_back=*/true);
  EXPECT_EQ(jobs.begun.back().connection, later->rank(0).connection())
      << "though its job came later";
}

TEST(SaveLanes, AreKeptForUsersWhoHaveNone) {
  SaveLanes lanes;
  std::vector<std::shared_ptr<const void>> held;
  for (uint32_t uid = 0; lanes.HasFree(uid); ++uid) {
    while (lanes.HasFree(uid)) held.push_back(lanes.Take(uid, held.size(), "a save"));
    if (uid > 2 * SaveLanes::kOfAll) break;
  }
  EXPECT_EQ(held.size(), SaveLanes::kOfAll);
  held.clear();
  for (uint32_t uid = 0; uid < SaveLanes::kForOthers / SaveLanes::kOfUser; ++uid) {
    for (size_t i = 0; i < SaveLanes::kOfUser; ++i)
      held.push_back(lanes.Take(uid, held.size(), "a save"));
  }
  EXPECT_FALSE(lanes.HasFree(0));
  for (uint32_t uid = 100; uid < 100 + SaveLanes::kForOthers; ++uid) {
    ASSERT_TRUE(lanes.HasFree(uid)) << uid;
    held.push_back(lanes.Take(uid, held.size(), "a save"));
    EXPECT_FALSE(lanes.HasFree(uid)) << "a second one, while others may still come";
  }
  EXPECT_FALSE(lanes.HasFree(999)) << "all are taken";
}

}  // namespace save_lanes_test
}  // namespace tidepool::memserver
