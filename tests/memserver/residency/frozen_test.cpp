// Frozen chunks in a whole serve loop: one copy for all jobs of a user, exact bytes, and nobody who
// writes to them.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/point.h"
#include "shm/spec/decode.h"
#include "shm/spec/encode.h"
#include "shm/spec/frozen.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace frozen_test {

constexpr uint64_t kElements = 2048;  // of a frozen chunk, fp32
constexpr uint64_t kBytes = kElements * sizeof(float);
constexpr uint64_t kExtent = kPageBytes + kBytes;
constexpr uint64_t kOffset = 32 * kKiB;  // in the rCache
constexpr ChunkId kFrozen = 2;           // behind the two that a small job trains
constexpr uint32_t kAlice = 1000, kBob = 1001;

std::vector<std::byte> Content(uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::byte> bytes(kBytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

// A small job over the frozen chunks with these contents.
shm::JobSpec Adapter(const std::string& name, const std::vector<uint64_t>& contents = {1},
                     uint32_t world = 1) {
  shm::JobSpec spec = MakeSpec({.name = name, .world = world});
  for (const uint64_t seed : contents)
    spec.frozen.push_back({kElements, spec.dtype, HashOf(Content(seed))});
  return spec;
}

uint64_t AdapterBytes(const std::vector<uint64_t>& contents = {1}) {
  return shm::StateBytesOf(Adapter("a", contents)).total();
}

ErrorId ErrorOf(const shm::Completion& answer) {
  return static_cast<ErrorId>(answer.error);
}

class Frozen : public ::testing::TestWithParam<uint32_t> {  // worker threads
 protected:
  static WorldOptions Options(uint64_t pool_bytes = 8 * kMiB) {
    WorldOptions options = WithLease();
    options.pool_bytes = pool_bytes;
    options.workers = GetParam();
    return options;
  }
  void Begin(const WorldOptions& options) { world_ = std::make_unique<ServeWorld>(options); }
  void SetUp() override { Begin(Options()); }

  std::unique_ptr<FakeRank> Join(const shm::JobSpec& spec, uint32_t uid = kAlice, Rank rank = 0) {
    return world_->Join(spec, rank, uid);
  }
  shm::Completion Claim(FakeRank* rank, ChunkId chunk = kFrozen) {
    return world_->Await(rank, rank->Claim(chunk));
  }
  shm::Completion Put(FakeRank* rank, const std::vector<std::byte>& content, uint64_t begin,
                      uint64_t end, ChunkId chunk = kFrozen) {
    std::memcpy(rank->rcache() + kOffset, content.data() + begin, end - begin);
    return world_->Await(
        rank, rank->Put(chunk, begin / sizeof(float), (end - begin) / sizeof(float), kOffset));
  }
  // Claims, puts in two pieces, and claims again: that answer.
  shm::Completion Provide(FakeRank* rank, const std::vector<std::byte>& content,
                          ChunkId chunk = kFrozen) {
    const shm::Completion claimed = Claim(rank, chunk);
    EXPECT_EQ(claimed.error, 0u);
    EXPECT_EQ(claimed.bytes, 0u) << "nobody has put it";
    EXPECT_EQ(Put(rank, content, 0, kBytes / 4, chunk).bytes, kBytes / 4);
    EXPECT_EQ(Put(rank, content, kBytes / 4, kBytes, chunk).error, 0u);
    return Claim(rank, chunk);
  }
  std::vector<std::byte> Fetch(FakeRank* rank, ChunkId chunk = kFrozen, Version version = 0) {
    EXPECT_EQ(world_->Await(rank, rank->Fetch(chunk, 0, kElements, kOffset, version)).error, 0u);
    return {rank->rcache() + kOffset, rank->rcache() + kOffset + kBytes};
  }
  bool Waits(FakeRank* rank) {
    world_->Settle();
    return !rank->Take().has_value() && !rank->Ended();
  }
  uint64_t Used() { return world_->pool().total_bytes() - world_->pool().free_bytes(); }
  void Leave(const FakeRank& rank) {
    world_->Leave(rank);
    world_->Settle();
  }
  std::shared_ptr<const Snapshot> Look() {
    world_->Post(SnapshotWanted{});
    world_->Settle();
    const auto ready = world_->TakeReply<SnapshotReady>();
    return ready ? ready->snapshot : std::make_shared<const Snapshot>();
  }
  Status Refusal() {
    const auto refused = world_->TakeReply<Refused>();
    return refused ? refused->why : Status();
  }
  const FrozenTable& table() { return *world_->tables().frozen; }

  std::unique_ptr<ServeWorld> world_;
};

TEST_P(Frozen, FourJobsTakeTheBaseOnceAndTheirAdaptersExactly) {
  const std::vector<uint64_t> base{1, 2, 3};
  const uint64_t base_bytes = 3 * kExtent, adapter_bytes = AdapterBytes(base);
  Begin(Options(base_bytes + 4 * adapter_bytes));
  std::vector<std::unique_ptr<FakeRank>> jobs;
  for (const char* name : {"a", "b", "c", "d"}) {
    jobs.push_back(Join(Adapter(name, base)));
    ASSERT_NE(jobs.back(), nullptr) << Refusal().Line();
    EXPECT_EQ(Used(), base_bytes + jobs.size() * adapter_bytes);
  }
  EXPECT_EQ(world_->pool().free_bytes(), 0u);
  for (uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(Provide(jobs[i].get(), Content(i + 1), kFrozen + i).bytes, kBytes);
  for (const auto& job : jobs) {
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(Claim(job.get(), kFrozen + i).bytes, kBytes)
          << "a job that comes later uploads nothing";
      EXPECT_EQ(Fetch(job.get(), kFrozen + i), Content(i + 1));
    }
  }
  for (uint64_t left = 4; left > 0; --left) {
    EXPECT_EQ(table().chunks().size(), 3u);
    EXPECT_EQ(table().chunks().begin()->second->holders, left);
    Leave(*jobs[left - 1]);
    EXPECT_EQ(Used(), left > 1 ? base_bytes + (left - 1) * adapter_bytes : 0);
  }
  EXPECT_TRUE(table().chunks().empty());
}

TEST_P(Frozen, OnePageLessRefusesTheFourthJobAndTheBaseStaysWithTheOthers) {
  Begin(Options(kExtent + 4 * AdapterBytes() - kPageBytes));
  std::vector<std::unique_ptr<FakeRank>> jobs;
  for (const char* name : {"a", "b", "c"}) jobs.push_back(Join(Adapter(name)));
  EXPECT_EQ(Join(Adapter("d")), nullptr);
  const Status why = Refusal();
  EXPECT_EQ(why.id(), ErrorId::kPoolFull);
  EXPECT_NE(why.why().find("user:1000 in frozen chunks holds 12.0 KiB"), std::string::npos)
      << why.Format();
  EXPECT_EQ(Used(), kExtent + 3 * AdapterBytes());
  EXPECT_EQ(table().chunks().begin()->second->holders, 3u);
}

TEST_P(Frozen, AListedTwiceChunkIsOneChunk) {
  const shm::JobSpec spec = Adapter("twice", {7, 7});
  EXPECT_EQ(shm::FrozenPoolBytes(spec), kExtent);
  const auto rank = Join(spec);
  EXPECT_EQ(Used(), kExtent + AdapterBytes({7, 7}));
  EXPECT_EQ(Provide(rank.get(), Content(7)).bytes, kBytes);
  EXPECT_EQ(Claim(rank.get(), kFrozen + 1).bytes, kBytes);
  EXPECT_EQ(Fetch(rank.get(), kFrozen + 1), Content(7));
  const auto snapshot = Look();
  EXPECT_EQ(snapshot->pool_frozen, kExtent);
  EXPECT_EQ(snapshot->jobs.front().frozen_bytes, kExtent);
  EXPECT_EQ(snapshot->jobs.front().pool_bytes + snapshot->pool_frozen, snapshot->pool_used);
  EXPECT_EQ(snapshot->jobs.front().chunks[kFrozen].state, ChunkState::kFrozen);
  EXPECT_EQ(snapshot->jobs.front().chunks[kFrozen + 1].ranks_cached, 1u);
  Leave(*rank);
  EXPECT_EQ(Used(), 0u);
}

TEST_P(Frozen, BytesCountForTheUserWhateverAccountsTheJobsHave) {
  WorldOptions options = Options();
  options.loop.quotas = {{.account = "user:1000", .quota = {.limit = kExtent}},
                         {.account = "job:own", .quota = {.limit = AdapterBytes()}}};
  Begin(options);
  const auto own = Join(Adapter("own"));
  ASSERT_NE(own, nullptr) << Refusal().Line();
  const auto snapshot = Look();
  ASSERT_EQ(snapshot->accounts.size(), 2u);
  EXPECT_EQ(snapshot->accounts[0].account, "job:own");
  EXPECT_EQ(snapshot->accounts[0].used, AdapterBytes());
  EXPECT_EQ(snapshot->accounts[1].used, kExtent);
  EXPECT_EQ(Join(Adapter("other", {2})), nullptr) << "the user has no room for another base";
  const Status why = Refusal();
  EXPECT_EQ(why.id(), ErrorId::kQuotaExceeded);
  EXPECT_NE(
      why.what().find(
          "needs 12.0 KiB (12288 bytes) of host memory for frozen chunks; user:1000 may have 0 B"),
      std::string::npos)
      << why.Format();
  EXPECT_EQ(table().chunks().size(), 1u);
}

TEST_P(Frozen, WhoWaitsForRoomGetsItWithTheBase) {
  Begin(Options(kExtent + AdapterBytes()));
  const auto first = Join(Adapter("first"));
  world_->MayWait(true);
  world_->Reserve(Adapter("second", {2}), 0, kBob);
  world_->Settle();
  ASSERT_TRUE(world_->TakeReply<Queued>());
  Leave(*first);
  EXPECT_TRUE(world_->TakeReply<ReserveGranted>());
  EXPECT_TRUE(world_->TakeReply<Queued>()->why.ok());
  EXPECT_EQ(Used(), kExtent + AdapterBytes());
  world_->Reserve(Adapter("never", {3, 4}), 0, kBob);
  world_->Settle();
  EXPECT_FALSE(world_->TakeReply<Queued>()) << "it would not fit into an empty pool";
  EXPECT_EQ(Refusal().id(), ErrorId::kPoolFull);
}

TEST_P(Frozen, AnotherUserHasACopyOfHisOwnAndLearnsNothing) {
  const auto alice = Join(Adapter("alice"), kAlice);
  EXPECT_EQ(Provide(alice.get(), Content(1)).bytes, kBytes);
  const auto bob = Join(Adapter("bob"), kBob);
  EXPECT_EQ(Used(), 2 * (kExtent + AdapterBytes()));
  EXPECT_EQ(Provide(bob.get(), Content(1)).bytes, kBytes) << "he uploads it as if nobody had it";
  Leave(*alice);
  EXPECT_EQ(Used(), kExtent + AdapterBytes());
  EXPECT_EQ(Fetch(bob.get()), Content(1));
}

TEST_P(Frozen, WritesAreRefusedByNameAndChangeNothing) {
  const auto author = Join(Adapter("author")), reader = Join(Adapter("reader"));
  EXPECT_EQ(Provide(author.get(), Content(1)).bytes, kBytes);
  for (FakeRank* writer : {author.get(), reader.get()}) {
    EXPECT_EQ(ErrorOf(Put(writer, Content(2), 0, kBytes)), ErrorId::kChunkFrozen);
    const uint64_t gradient =
        writer->Submit({.chunk = kFrozen, .begin = 0, .count = kElements, .offset = kOffset});
    EXPECT_EQ(ErrorOf(world_->Await(writer, gradient)), ErrorId::kChunkFrozen);
    EXPECT_EQ(Fetch(writer), Content(1)) << "its session goes on";
  }
  EXPECT_EQ(world_->tables().counters.sessions_ended_badly, 0u);
}

TEST_P(Frozen, WrongBytesAreNeverFetchedAndTheirAuthorIsTold) {
  const auto liar = Join(Adapter("liar")), honest = Join(Adapter("honest"));
  EXPECT_EQ(Claim(liar.get()).bytes, 0u);
  const uint64_t claim = honest->Claim(kFrozen);
  EXPECT_TRUE(Waits(honest.get()));
  std::vector<std::byte> wrong = Content(1);
  wrong.back() ^= std::byte{1};
  EXPECT_EQ(Put(liar.get(), wrong, 0, kBytes).error, 0u);
  EXPECT_EQ(world_->Await(honest.get(), claim).bytes, 0u) << "it is to put them";
  EXPECT_EQ(ErrorOf(Claim(liar.get())), ErrorId::kContentMismatch);
  const uint64_t again = liar->Claim(kFrozen),
                 fetch = liar->Fetch(kFrozen, 0, kElements, kOffset, 0);
  EXPECT_TRUE(Waits(liar.get()));
  EXPECT_EQ(Put(honest.get(), Content(1), 0, kBytes).error, 0u);
  EXPECT_EQ(Claim(honest.get()).bytes, kBytes);
  EXPECT_EQ(world_->Await(liar.get(), again).bytes, kBytes);
  EXPECT_EQ(world_->Await(liar.get(), fetch).error, 0u);
  EXPECT_EQ(std::memcmp(liar->rcache() + kOffset, Content(1).data(), kBytes), 0);
  EXPECT_EQ(Fetch(honest.get()), Content(1));
}

TEST_P(Frozen, TwoUploadersTakeTurnsAndTheSecondUploadsNothing) {
  const auto first = Join(Adapter("first")), second = Join(Adapter("second"));
  EXPECT_EQ(Claim(first.get()).bytes, 0u);
  const uint64_t claim = second->Claim(kFrozen);
  EXPECT_TRUE(Waits(second.get()));
  std::memset(second->rcache() + kOffset, 0x5a, kBytes);
  const uint64_t stray = second->Put(kFrozen, 0, kElements, kOffset);
  EXPECT_EQ(ErrorOf(world_->Await(second.get(), stray)), ErrorId::kUploadLost)
      << "it is not its turn";
  EXPECT_EQ(Put(first.get(), Content(1), 0, kBytes).error, 0u);
  EXPECT_EQ(Claim(first.get()).bytes, kBytes);
  EXPECT_EQ(world_->Await(second.get(), claim).bytes, kBytes);
  EXPECT_EQ(Fetch(second.get()), Content(1));
}

// However many chunks a job lists, there is no more to look after than one upload a session.
TEST_P(Frozen, ASessionUploadsOneChunkAtATime) {
  const auto rank = Join(Adapter("job", {1, 2, 3})), other = Join(Adapter("other", {1, 2, 3}));
  EXPECT_EQ(Claim(rank.get()).bytes, 0u);
  const uint64_t second = rank->Claim(kFrozen + 1);
  EXPECT_TRUE(Waits(rank.get()));
  EXPECT_EQ(Provide(other.get(), Content(3), kFrozen + 2).bytes, kBytes)
      << "it holds up nobody else";
  EXPECT_EQ(Claim(other.get(), kFrozen + 1).bytes, 0u) << "what it waits for is not its own";
  EXPECT_EQ(Put(rank.get(), Content(1), 0, kBytes).error, 0u);
  EXPECT_EQ(Claim(rank.get()).bytes, kBytes);
  EXPECT_TRUE(Waits(rank.get())) << "now for the other one";
  EXPECT_EQ(Put(other.get(), Content(9), 0, kBytes, kFrozen + 1).error, 0u);
  EXPECT_EQ(world_->Await(rank.get(), second).bytes, 0u) << "those were wrong: it is its turn";
  EXPECT_EQ(Provide(rank.get(), Content(2), kFrozen + 1).bytes, kBytes);
}

TEST_P(Frozen, AnUploaderThatDiesInTheMiddleIsFollowedByWhoWaits) {
  const auto first = Join(Adapter("first")), second = Join(Adapter("second"));
  EXPECT_EQ(Claim(first.get()).bytes, 0u);
  EXPECT_EQ(Put(first.get(), Content(9), 0, kBytes / 2).error, 0u)
      << "of other bytes: they must not be gone on with";
  const uint64_t claim = second->Claim(kFrozen);
  EXPECT_TRUE(Waits(second.get()));
  std::memset(first->rcache() + kOffset, 0x5a, kBytes / 2);
  first->Put(kFrozen, kElements / 2, kElements / 2, kOffset);
  world_->Lose(*first);
  EXPECT_EQ(world_->Await(second.get(), claim).bytes, 0u);
  EXPECT_EQ(Put(second.get(), Content(1), 0, kBytes).error, 0u);
  EXPECT_EQ(Claim(second.get()).bytes, kBytes);
  EXPECT_EQ(Fetch(second.get()), Content(1));
  world_->Settle();
  EXPECT_EQ(Used(), kExtent + AdapterBytes())
      << "the dead one had no weights yet: nothing of it is kept";
}

TEST_P(Frozen, AnUploaderThatStopsLosesItsClaimWhileSomebodyWaits) {
  const auto first = Join(Adapter("first"));
  EXPECT_EQ(Claim(first.get()).bytes, 0u);
  EXPECT_EQ(Put(first.get(), Content(1), 0, kBytes / 2).error, 0u);
  world_->clock().Advance(2 * FrozenTable::kStallNs);
  world_->Settle();
  world_->clock().Advance(2 * FrozenTable::kStallNs);
  EXPECT_EQ(Put(first.get(), Content(1), kBytes / 2, kBytes * 3 / 4).error, 0u) << "nobody waits";
  const auto second = Join(Adapter("second"));
  const uint64_t claim = second->Claim(kFrozen);
  EXPECT_TRUE(Waits(second.get()));
  // While bytes of it are hashed, an upload does not stand still.
  while (table().chunks().begin()->second->at_worker) world_->loop().Turn();
  world_->clock().Advance(FrozenTable::kStallNs);
  EXPECT_EQ(world_->Await(second.get(), claim).bytes, 0u);
  EXPECT_EQ(ErrorOf(Put(first.get(), Content(1), kBytes * 3 / 4, kBytes)), ErrorId::kUploadLost);
  EXPECT_EQ(Put(second.get(), Content(1), 0, kBytes).error, 0u);
  EXPECT_EQ(Claim(second.get()).bytes, kBytes);
  EXPECT_EQ(Claim(first.get()).bytes, kBytes);
}

TEST_P(Frozen, AFetchWaitsUntilTheChunkIsThere) {
  const auto author = Join(Adapter("author")), reader = Join(Adapter("reader"));
  const uint64_t fetch = reader->Fetch(kFrozen, 16, 32, kOffset, 5);
  EXPECT_TRUE(Waits(reader.get()));
  EXPECT_EQ(Provide(author.get(), Content(1)).bytes, kBytes);
  const shm::Completion answer = world_->Await(reader.get(), fetch);
  EXPECT_EQ(answer.bytes, 128u);
  EXPECT_EQ(answer.version, 5u) << "it is the same in every version";
  EXPECT_EQ(std::memcmp(reader->rcache() + kOffset, Content(1).data() + 64, 128), 0);
}

TEST_P(Frozen, TrainingOverThemHasTheBitsThatItHasWithoutAndASaveHoldsTheAdapterAlone) {
  SmallTrainer with(world_.get(), Adapter("with", {1}, 2));
  ASSERT_TRUE(with.JoinAll());
  EXPECT_EQ(Provide(&with.rank(0), Content(1)).bytes, kBytes);
  with.PutWeights(1);
  for (uint64_t seed = 1; seed < 4; ++seed) {
    with.Step({.seed = seed});
    EXPECT_EQ(Fetch(&with.rank(1), kFrozen, seed), Content(1));
  }
  EXPECT_EQ(with.Compare(2e-6), "");
  world_->Post(SaveWeights{with.rank(0).connection(), UniqueFd(), "w", with.version()});
  world_->Settle();
  const auto saves = world_->TakeSaves();
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves.front().tensors.size(), with.spec().parameters.size());
}

// --- requests that no honest client sends ---

TEST_P(Frozen, PutsOutOfOrderEndTheirSession) {
  const auto rank = Join(Adapter("job")), other = Join(Adapter("other"));
  EXPECT_EQ(Claim(rank.get()).bytes, 0u);
  rank->Put(kFrozen, 16, 16, kOffset);
  world_->Settle();
  EXPECT_EQ(rank->Ended(), ErrorId::kProtocolViolation);
  EXPECT_EQ(Provide(other.get(), Content(1)).bytes, kBytes);
}

TEST_P(Frozen, ImpossibleRequestsEndTheirSession) {
  const std::vector<shm::Request> impossible = {
      FakeRank::ClaimRequest(0),                                 // a chunk that is trained
      FakeRank::ClaimRequest(kFrozen + 1),                       // none
      FakeRank::FetchRequest(kFrozen, 0, kElements + 16, 0, 0),  // behind its end
      FakeRank::FetchRequest(kFrozen, kElements, ~uint64_t{0}, 0, 0),
      FakeRank::FetchRequest(kFrozen, 0, 0, 0, 0),
      FakeRank::FetchRequest(kFrozen, 0, kElements, 60 * kKiB, 0),  // behind the rCache's
      FakeRank::FetchRequest(kFrozen, 0, 16, 2, 0),
      FakeRank::PutRequest(kFrozen, 0, kElements, ~uint64_t{0} - 3),
      [] {
        shm::Request claim = FakeRank::ClaimRequest(kFrozen);
        claim.element_count = 16;
        return claim;
      }(),
      [] {
        shm::Request fetch = FakeRank::FetchRequest(kFrozen, 0, 16, 0, 0);
        fetch.flags = 2;
        return fetch;
      }(),
  };
  for (size_t i = 0; i < impossible.size(); ++i) {
    const auto rank = Join(Adapter("job" + std::to_string(i)));
    rank->Send(impossible[i]);
    world_->Settle();
    EXPECT_EQ(rank->Ended(), ErrorId::kProtocolViolation) << i;
  }
  EXPECT_EQ(Used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(ByWhom, Frozen, ::testing::Values(0u, 1u),
                         [](const ::testing::TestParamInfo<uint32_t>& by) {
                           return std::string(by.param == 0 ? "Inline" : "AWorker");
                         });

// What a job lacks is said whenever it is admitted, or waits: it is counted again only when a chunk
// has come or gone.
TEST(FrozenTable, CountsWhatAJobLacksOnceForEachChange) {
  const auto decoded = [](const shm::JobSpec& spec) {
    return shm::Decode(shm::Encode(spec)).value();
  };
  const shm::JobSpec held = decoded(Adapter("held", {1, 2, 3})),
                     longer = decoded(Adapter("longer", {3, 4, 4, 5, 6}));
  const shm::JobSpec shorter = decoded(Adapter("shorter", {2, 9}));
  ServeWorld world;
  FrozenTable table(&world.pool());
  uint64_t counted = 0;
  SetPointHook([&counted](const char* name) {
    counted += std::string_view(name) == "server.frozen_counted" ? 1 : 0;
  });
  EXPECT_EQ(table.MissingBytes(longer, kAlice), 4 * kExtent);
  EXPECT_EQ(counted, 0U) << "nobody has any";
  {
    auto hold = table.Take(held, kAlice);
    ASSERT_TRUE(hold.ok());
    for (int times = 0; times < 3; ++times) {
      EXPECT_EQ(table.MissingBytes(longer, kAlice), 3 * kExtent);
      EXPECT_EQ(table.MissingBytes(shorter, kAlice), kExtent);
      EXPECT_EQ(table.MissingBytes(longer, kBob), 4 * kExtent);
    }
    EXPECT_EQ(counted, 2U);
    EXPECT_EQ(table.MissingBytes(shm::JobSpec(longer), kAlice), 3 * kExtent) << "one without sums";
    EXPECT_EQ(table.pool_bytes(), 3 * kExtent);
    EXPECT_EQ(table.BytesByUser().at(kAlice), 3 * kExtent);
    auto more = table.Take(longer, kAlice);
    ASSERT_TRUE(more.ok());
    EXPECT_EQ(table.MissingBytes(longer, kAlice), 0U);
    EXPECT_EQ(table.pool_bytes(), 6 * kExtent);
  }
  EXPECT_EQ(table.MissingBytes(longer, kAlice), 4 * kExtent);
  EXPECT_TRUE(table.BytesByUser().empty());
  EXPECT_EQ(table.pool_bytes(), 0U);
  SetPointHook({});
}

}  // namespace frozen_test
}  // namespace tidepool::memserver
