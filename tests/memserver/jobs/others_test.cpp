// What one user cannot take from others: places of jobs and in the queue, and the turn of a small
// job behind a large one that waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "memserver/jobs/admission/queue_passing.h"
#include "memserver/residency/fair_places.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace others_test {

using ::testing::HasSubstr;

constexpr uint32_t kAlice = 1000, kBob = 1001, kCarol = 1002, kOwner = 77;

// --- places ---

Places Of64(uint32_t used, uint32_t own) {
  return {.what = "jobs",
          .all = 64,
          .used = used,
          .own = own,
          .uid = kAlice,
          .of_user_max = 32,
          .is_limited = true};
}

TEST(FairPlaces, AUserHasItsShareAndOthersAlwaysFindSome) {
  EXPECT_TRUE(AdmitPlace(Of64(0, 0)).ok());
  EXPECT_TRUE(AdmitPlace(Of64(31, 31)).ok());
  EXPECT_EQ(AdmitPlace(Of64(32, 32)).id(), ErrorId::kQuotaExceeded)
      << "half of all is what one may have";
  EXPECT_TRUE(AdmitPlace(Of64(47, 15)).ok());
  EXPECT_EQ(AdmitPlace(Of64(48, 16)).id(), ErrorId::kQuotaExceeded)
      << "the last quarter is for others";
  EXPECT_TRUE(AdmitPlace(Of64(48, 3)).ok()) << "who has few is one of those";
  EXPECT_EQ(AdmitPlace(Of64(48, 4)).id(), ErrorId::kQuotaExceeded);
  EXPECT_TRUE(AdmitPlace(Of64(63, 0)).ok());
  EXPECT_EQ(AdmitPlace(Of64(64, 0)).id(), ErrorId::kTooManySessions);
  EXPECT_THAT(AdmitPlace(Of64(48, 16)).what(),
              HasSubstr("the last 16 are kept for users with fewer than 4"));
}

TEST(FairPlaces, RootAndTheOwnerMayHaveAll) {
  Places places = Of64(63, 63);
  places.is_limited = false;
  EXPECT_TRUE(AdmitPlace(places).ok());
}

TEST(FairPlaces, SeveralAtOnceAreAllOrNone) {
  const auto more = [](uint32_t used, uint32_t own, uint32_t wanted) {
    Places places = Of64(used, own);
    places.wanted = wanted;
    return AdmitPlace(places).id();
  };
  EXPECT_EQ(more(40, 0, 8), ErrorId::kNone);
  EXPECT_EQ(more(41, 0, 8), ErrorId::kQuotaExceeded) << "one of them would be of the last quarter";
  EXPECT_EQ(more(56, 0, 4), ErrorId::kNone) << "who has few is one of those it is kept for";
  EXPECT_EQ(more(56, 0, 9), ErrorId::kTooManySessions);
  EXPECT_EQ(more(0, 0, 33), ErrorId::kQuotaExceeded);
  EXPECT_EQ(more(0, 0, UINT32_MAX), ErrorId::kTooManySessions);
}

TEST(FairPlaces, OfAFewNoneIsKeptThatWouldLeaveNone) {
  for (uint32_t all = 1; all <= 4; ++all) {
    EXPECT_TRUE(
        AdmitPlace({.what = "jobs", .all = all, .used = all - 1, .own = 0, .is_limited = true})
            .ok())
        << all;
  }
}

// --- jobs and queue ---

SpecOptions Small(const std::string& name) {
  return {.name = name, .rcache_bytes = 4096};
}

uint64_t BytesOf(const SpecOptions& spec) {
  return shm::StateBytesOf(MakeSpec(spec)).total();
}

// Whoever serves is no user of the tests.
WorldOptions Service(uint64_t pool_bytes) {
  WorldOptions options;
  options.pool_bytes = pool_bytes;
  options.loop.owner = kOwner;
  return options;
}

Status Refusal(ServeWorld* world) {
  const auto refused = world->TakeReply<Refused>();
  return refused ? refused->why : Status();
}

struct Asked {
  ConnectionId connection = 0;
  uint32_t place = 0;  // 0: not in the queue
};
Asked AskToWait(ServeWorld* world, const SpecOptions& spec, uint32_t uid) {
  world->MayWait(true);
  Asked asked{.connection = world->Reserve(MakeSpec(spec), 0, uid)};
  world->MayWait(false);
  world->Settle();
  if (const auto queued = world->TakeReply<Queued>()) asked.place = queued->place;
  return asked;
}

bool IsGranted(ServeWorld* world, ConnectionId connection) {
  world->Settle();
  const auto granted = world->TakeReply<ReserveGranted>();
  return granted && granted->connection == connection;
}

TEST(PlacesOfJobs, OneUserTakesAreNotAll) {
  WorldOptions options = Service(8 * kMiB);
  options.loop.live.jobs_max = 8;
  options.loop.limits.user_jobs_max = 4;
  ServeWorld world(options);
  std::vector<std::unique_ptr<FakeRank>> ranks;
  for (int i = 0; i < 4; ++i)
    ranks.push_back(world.Join(MakeSpec(Small("alice" + std::to_string(i))), 0, kAlice));
  EXPECT_EQ(std::count(ranks.begin(), ranks.end(), nullptr), 0);
  EXPECT_EQ(world.Join(MakeSpec(Small("alice4")), 0, kAlice), nullptr);
  EXPECT_EQ(Refusal(&world).id(), ErrorId::kQuotaExceeded);
  for (int i = 0; i < 2; ++i)
    ranks.push_back(world.Join(MakeSpec(Small("bob" + std::to_string(i))), 0, kBob));
  EXPECT_EQ(std::count(ranks.begin(), ranks.end(), nullptr), 0);
  EXPECT_EQ(world.Join(MakeSpec(Small("bob2")), 0, kBob), nullptr) << "the last quarter";
  EXPECT_THAT(Refusal(&world).what(), HasSubstr("kept for users with fewer"));
  EXPECT_NE(world.Join(MakeSpec(Small("carol")), 0, kCarol), nullptr);
  EXPECT_NE(world.Join(MakeSpec(Small("owner")), 0, kOwner), nullptr);
}

// Whoever is above its own share waits for its own jobs, and holds up nobody.
TEST(PlacesOfJobs, WhoHasItsShareWaitsForItsOwn) {
  WorldOptions options = Service(8 * kMiB);
  options.loop.live.jobs_max = 8;
  options.loop.limits.user_jobs_max = 1;
  ServeWorld world(options);
  const auto first = world.Join(MakeSpec(Small("first")), 0, kAlice);
  const Asked second = AskToWait(&world, Small("second"), kAlice);
  EXPECT_EQ(second.place, 1u);
  EXPECT_NE(world.Join(MakeSpec(Small("bob")), 0, kBob), nullptr);
  world.Leave(*first);
  EXPECT_TRUE(IsGranted(&world, second.connection));
}

TEST(PlacesInTheQueue, OneUserTakesAreNotAll) {
  WorldOptions options = Service(BytesOf(Small("x")));
  options.loop.limits.sessions_max = 4;
  options.loop.limits.user_sessions_max = 2;
  ServeWorld world(options);
  ASSERT_NE(world.Join(MakeSpec(Small("first")), 0, kCarol), nullptr);
  EXPECT_EQ(AskToWait(&world, Small("alice0"), kAlice).place, 1u);
  EXPECT_EQ(AskToWait(&world, Small("alice1"), kAlice).place, 2u);
  EXPECT_EQ(AskToWait(&world, Small("alice2"), kAlice).place, 0u);
  EXPECT_THAT(Refusal(&world).Format(), HasSubstr("as many as one user may have"));
  EXPECT_EQ(AskToWait(&world, Small("bob"), kBob).place, 3u);
}

// --- passing ---

SpecOptions Large() {
  return {.name = "large", .chunks = 32, .rcache_bytes = 4096};
}

// Alice's large job waits for the whole pool, of which carol has a little.
struct OneWaits {
  OneWaits() : world(Service(BytesOf(Large()))) {
    carols = world.Join(MakeSpec(Small("carol")), 0, kCarol);
    EXPECT_NE(carols, nullptr);
    waits = AskToWait(&world, Large(), kAlice);
    EXPECT_EQ(waits.place, 1u);
  }
  std::unique_ptr<FakeRank> Join(const std::string& name, uint32_t uid) {
    return world.Join(MakeSpec(Small(name)), 0, uid);
  }
  ServeWorld world;
  std::unique_ptr<FakeRank> carols;
  Asked waits;
};

TEST(Passing, ASmallJobOfAnotherUserIsNotHeldUpByOneThatWantsTheWholePool) {
  OneWaits t;
  EXPECT_NE(t.Join("bob", kBob), nullptr);
  EXPECT_EQ(t.Join("alice", kAlice), nullptr) << "her own waits with the large one";
  EXPECT_EQ(Refusal(&t.world).id(), ErrorId::kPoolFull);
}

TEST(Passing, AJobThatIsNotSmallWaitsBehind) {
  OneWaits t;
  SpecOptions half = Small("half");
  half.chunks = 12;
  EXPECT_EQ(t.world.Join(MakeSpec(half), 0, kBob), nullptr) << "although it would fit";
  EXPECT_THAT(Refusal(&t.world).what(), HasSubstr("waits for room before it"));
}

TEST(Passing, EndsSoThatTheLargeJobGetsItsTurn) {
  OneWaits t;
  std::vector<std::unique_ptr<FakeRank>> passed;
  for (int i = 0; i < 100; ++i) {  // each goes as soon as it is there: there is always room
    auto rank = t.Join("bob" + std::to_string(i), kBob);
    if (rank == nullptr) break;
    t.world.Leave(*rank);
    t.world.Settle();
    passed.push_back(std::move(rank));
  }
  EXPECT_EQ(passed.size(), kPassesOfUserMax) << "of one user";
  for (uint32_t uid = 2000; uid < 2100; ++uid) {
    auto rank = t.Join("u" + std::to_string(uid), uid);
    if (rank == nullptr) break;
    t.world.Leave(*rank);
    t.world.Settle();
    passed.push_back(std::move(rank));
  }
  EXPECT_EQ(passed.size(), kPassesMax) << "of all";
  t.world.TakeAllReplies();
  t.world.Leave(*t.carols);
  EXPECT_TRUE(IsGranted(&t.world, t.waits.connection));
}

TEST(Passing, WhoWaitsBehindIsServedWhenThereIsRoomForIt) {
  WorldOptions options = Service(BytesOf(Large()));
  ServeWorld world(options);
  SpecOptions most = Large();
  most.name = "most";
  const auto holder = world.Join(MakeSpec(most), 0, kCarol);
  ASSERT_NE(holder, nullptr);
  const Asked large = AskToWait(&world, Large(), kAlice);
  const Asked small = AskToWait(&world, Small("small"), kBob);
  EXPECT_EQ(small.place, 2u);
  world.Leave(*holder);
  world.Settle();
  EXPECT_TRUE(IsGranted(&world, large.connection)) << "in order";
  EXPECT_EQ(world.jobs().waiting().size(), 1u);
}

// Lunch: a whole-pool job has come to wait meanwhile. The job that comes back has the memory that
// is waited for.
TEST(Passing, AJobThatComesBackIsNoNewcomer) {
  WorldOptions options = Service(BytesOf(Large()));
  options.loop.times.lease_ns = 8 * 3600 * kNsPerSecond;
  ServeWorld world(options);
  auto rank = world.Join(MakeSpec({.name = "lunch", .rcache_bytes = 4096}), 0, kCarol);
  ASSERT_NE(rank, nullptr);
  for (ChunkId chunk = 0; chunk < 2; ++chunk)
    EXPECT_EQ(world.Await(rank.get(), rank->Put(chunk, 0, 192, 0)).error, 0u);
  const Asked waits = AskToWait(&world, Large(), kAlice);
  ASSERT_EQ(waits.place, 1u);
  world.Lose(*rank);
  world.Settle();
  ASSERT_EQ(world.tables().jobs.size(), 1u) << "kept";
  EXPECT_NE(world.Join(MakeSpec({.name = "lunch", .rcache_bytes = 4096}), 0, kCarol), nullptr);
}

}  // namespace others_test
}  // namespace tidepool::memserver
