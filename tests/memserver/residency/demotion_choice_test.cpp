// Whose states go to NVMe: by priority, then by time, only what is borrowed, and no more than the
// newcomer needs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "memserver/residency/demotion_choice.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace demotion_choice_test {

using Ids = std::vector<JobId>;

// bf16: 16 bytes a parameter on the host, of which 12 can move.
shm::JobSpec SpecOf(const std::string& name) {
  return MakeSpec({.name = name, .dtype = DType::kBF16, .chunks = 2, .chunk_elements = 4096});
}

class Choice : public ::testing::Test {
 protected:
  // Ten of them in the pool, so much is free.
  Choice() {
    ledger_.pool_bytes = 10 * All();
    ledger_.jobs_max = 64;
  }
  static uint64_t All() { return shm::StateBytesOf(SpecOf("x")).total(); }
  static uint64_t Moves() { return MovableBytes(SpecOf("x"), 2); }
  static uint64_t OnNvme() { return shm::NvmeBytesOf(SpecOf("x"), 0); }

  JobId Add(const std::string& account, Priority priority = Priority::kNormal,
            int64_t detached_ns = 0, const std::string& why_not = "") {
    const JobId id = static_cast<JobId>(jobs_.size()) + 1;
    jobs_.push_back({id, priority, detached_ns, &spec_, 2, why_not});
    Holding holding{
        .job = "job" + std::to_string(id), .account = account, .pool_bytes = All(), .id = id};
    ledger_.holdings.push_back(holding);
    return id;
  }
  // For a newcomer that needs so much of the pool beyond what is free.
  DemotionChoice ChooseFor(uint64_t more, Priority priority = Priority::kNormal,
                           const std::string& account = "user:9") {
    const uint64_t needs = RoomFor(ledger_, account).bytes + more;
    const auto fits = [&](const Newcomer::Then& then) {
      return RoomFor(then.ledger, account).bytes >= needs;
    };
    return ChooseDemotions(ledger_, jobs_, nvme_free_, {account, priority, fits});
  }

  const shm::JobSpec spec_ = SpecOf("x");
  Ledger ledger_;
  std::vector<Movable> jobs_;
  std::vector<uint64_t> nvme_free_{100 * OnNvme()};
};

TEST_F(Choice, TakesTheLowestPriorityAndThenTheOneThatIsAloneForLongest) {
  Add("user:1", Priority::kNormal, 5);
  const JobId old = Add("user:2", Priority::kNormal, 3);
  const JobId low = Add("user:3", Priority::kLow, 9);
  EXPECT_EQ(ChooseFor(1).jobs, Ids{low});
  EXPECT_EQ(ChooseFor(Moves() + 1).jobs, (Ids{low, old}));
  EXPECT_EQ(ChooseFor(2 * Moves()).bytes, 2 * Moves());
}

TEST_F(Choice, TakesNobodyWhereNobodyHasToMove) {
  Add("user:1");
  const DemotionChoice choice = ChooseFor(0);
  EXPECT_TRUE(choice.fits && choice.jobs.empty());
  EXPECT_EQ(choice.why_not, "");
}

TEST_F(Choice, TakesNobodyWhoIsNotNeededAfterAll) {
  const shm::JobSpec small =
      MakeSpec({.name = "small", .dtype = DType::kBF16, .chunks = 1, .chunk_elements = 192});
  const JobId first = Add("user:1", Priority::kLow);
  const JobId second = Add("user:2");
  jobs_[0].spec = &small;
  jobs_[0].on_host = 1;
  ledger_.holdings[0].pool_bytes = shm::StateBytesOf(small).total();
  ASSERT_LT(MovableBytes(small, 1), Moves());
  EXPECT_EQ(ChooseFor(1).jobs, Ids{first});
  EXPECT_EQ(ChooseFor(Moves()).jobs, Ids{second})
      << "the small one gives too little, and the other is enough";
}

TEST_F(Choice, NeverTakesOneOfAHigherPriority) {
  Add("user:1", Priority::kHigh);
  const JobId equal = Add("user:2");
  EXPECT_EQ(ChooseFor(1).jobs, Ids{equal});
  EXPECT_TRUE(ChooseFor(1, Priority::kLow).jobs.empty());
  const DemotionChoice refused = ChooseFor(2 * Moves());
  EXPECT_TRUE(refused.jobs.empty());
  EXPECT_NE(refused.why_not.find("job1 has a higher priority"), std::string::npos)
      << refused.why_not;
  EXPECT_NE(refused.why_not.find("job2 gives " + FormatBytes(Moves()) + ", which is not enough"),
            std::string::npos)
      << refused.why_not;
}

TEST_F(Choice, LeavesEachAccountItsGuarantee) {
  ledger_.quotas = {{"user:1", {.guarantee = 2 * All() - Moves()}},
                    {"user:2", {.guarantee = All()}}};
  const JobId borrowed = Add("user:1", Priority::kNormal, 7);
  Add("user:1", Priority::kNormal, 8);
  Add("user:2", Priority::kLow);
  EXPECT_EQ(ChooseFor(1).jobs, Ids{borrowed});
  const DemotionChoice refused = ChooseFor(Moves() + 1);
  EXPECT_TRUE(refused.jobs.empty());
  EXPECT_NE(refused.why_not.find("job2 is within the guarantee of user:1"), std::string::npos)
      << refused.why_not;
  EXPECT_NE(refused.why_not.find("job3 is within the guarantee of user:2"), std::string::npos)
      << refused.why_not;
}

TEST_F(Choice, AnAccountMayMoveItsOwnJobsBelowItsGuarantee) {
  ledger_.quotas = {{"user:1", {.guarantee = All(), .limit = All()}}};
  const JobId own = Add("user:1");
  EXPECT_TRUE(ChooseFor(1, Priority::kNormal, "user:2").jobs.empty());
  EXPECT_EQ(ChooseFor(Moves(), Priority::kNormal, "user:1").jobs, Ids{own})
      << "its limit has room then";
}

TEST_F(Choice, TakesOnlyOneOfItsOwnAccountForTheLimitOfIts) {
  ledger_.quotas = {{"user:1", {.limit = All()}}};
  Add("user:2", Priority::kLow);
  const JobId own = Add("user:1");
  EXPECT_EQ(ChooseFor(1, Priority::kNormal, "user:1").jobs, Ids{own})
      << "another one gives it nothing";
}

TEST_F(Choice, MindsTheRoomAndTheLimitsOnNvme) {
  ledger_.quotas = {{"user:1", {.nvme_limit = OnNvme() - 1}}};
  nvme_free_ = {OnNvme() / 2, OnNvme() / 2};
  Add("user:1", Priority::kLow);
  const JobId striped = Add("user:2");
  Add("user:3");
  EXPECT_EQ(ChooseFor(1).jobs, Ids{striped});
  const DemotionChoice refused = ChooseFor(Moves() + 1);
  EXPECT_TRUE(refused.jobs.empty());
  EXPECT_NE(refused.why_not.find("job1 would be above the limit on NVMe of user:1"),
            std::string::npos)
      << refused.why_not;
  EXPECT_NE(refused.why_not.find("job3 finds no room on NVMe"), std::string::npos)
      << refused.why_not;
}

TEST_F(Choice, SaysWhyOthersMayNotMoveAndNamesNotTooMany) {
  Add("user:1", Priority::kNormal, 0, "has ranks");
  EXPECT_EQ(ChooseFor(1).why_not, "job1 has ranks");
  for (size_t i = 0; i < kNamedMax; ++i) Add("user:2", Priority::kNormal, 0, "is being saved");
  const std::string text = ChooseFor(1).why_not;
  EXPECT_EQ(text.substr(text.size() - 11), ", and so on");
}

}  // namespace demotion_choice_test
}  // namespace tidepool::memserver
