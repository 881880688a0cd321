// Servers before this one: how kept memory names them, who of them has not ended, and jobs that
// wait for their end, because their copies may be under way. Host devices stand in for GPUs; what
// such a copy still writes, the test writes.
#include "memserver/former_servers.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/formats/content_hash.h"
#include "base/point.h"
#include "memserver/admin/reports/health_report.h"
#include "memserver/control/peer_identity.h"
#include "tests/fakes/sleeper.h"
#include "tests/fakes/small_job.h"
#include "tests/memserver/paced_device.h"

namespace tidepool::memserver {
namespace former_servers_test {

// --- names in kept memory ---

constexpr ProcessName kProcess{4711, 815, 99};

std::vector<std::byte> ImageOf(const KeptIndex& index) {
  std::vector<std::byte> image(kIndexBytes);
  EXPECT_EQ(pread(index.fd(), image.data(), image.size(), 0), static_cast<ssize_t>(image.size()));
  return image;
}

std::vector<NotedServer> ServersIn(const KeptIndex& index) {
  auto contents = ReadIndex(ImageOf(index));
  EXPECT_TRUE(contents.ok());
  return contents.ok() ? contents->servers : std::vector<NotedServer>();
}

std::unique_ptr<KeptIndex> MakeIndex() {
  return KeptIndex::Create({8192, 4096, 64 * kKiB}, 5).value();
}

TEST(ServerNotes, AreReadAsTheyWereWrittenUntilTheyAreForgotten) {
  const auto index = MakeIndex();
  EXPECT_TRUE(ServersIn(*index).empty())
      << "an index of a server that knows nothing of notes looks the same";
  const uint32_t first = index->NoteServer(kProcess).value();
  const uint32_t second = index->NoteServer({4712, 816, 99}).value();
  EXPECT_EQ(first & second, 0U);
  auto servers = ServersIn(*index);
  ASSERT_EQ(servers.size(), 2U);
  EXPECT_EQ(BitOf(servers[0].place), first);
  EXPECT_EQ(servers[0].process, kProcess);
  EXPECT_EQ(servers[1].process.pid, 4712);

  index->ForgetServers(first);
  servers = ServersIn(*index);
  ASSERT_EQ(servers.size(), 1U);
  EXPECT_EQ(BitOf(servers[0].place), second);
  EXPECT_EQ(index->NoteServer(kProcess).value(), first) << "its place is free again";
}

TEST(ServerNotes, HaveSoManyPlacesAndNoMore) {
  const auto index = MakeIndex();
  uint32_t all = 0;
  for (uint32_t i = 0; i < kServersNoted; ++i)
    all |= index->NoteServer({static_cast<int32_t>(1 + i), 1, 1}).value_or(0);
  EXPECT_EQ(all, ~uint32_t{0});
  EXPECT_FALSE(index->NoteServer(kProcess).has_value());
}

TEST(ServerNotes, OneThatDoesNotFitItsCheckIsNone) {
  const auto index = MakeIndex();
  index->NoteServer(kProcess);
  const std::vector<std::byte> image = ImageOf(*index);
  const auto at =
      std::search(image.begin(), image.end(), reinterpret_cast<const std::byte*>(&kProcess.start),
                  reinterpret_cast<const std::byte*>(&kProcess.start + 1));
  ASSERT_NE(at, image.end());
  for (ptrdiff_t byte = at - image.begin() - 8; byte < at - image.begin() + 16; ++byte) {
    std::vector<std::byte> bad = image;
    bad[static_cast<size_t>(byte)] ^= std::byte{2};
    auto contents = ReadIndex(bad);
    ASSERT_TRUE(contents.ok());
    EXPECT_TRUE(contents->servers.empty()) << "byte " << byte;
  }
}

// --- processes ---

std::vector<NotedServer> Noted(const std::vector<ProcessName>& processes) {
  std::vector<NotedServer> noted;
  for (const ProcessName& process : processes)
    noted.push_back({static_cast<uint32_t>(noted.size()), process});
  return noted;
}

bool Readable(int fd, int64_t limit_ms) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit_ms)) == 1;
}

TEST(FormerServers, OwnNameIsThatOfThisProcess) {
  const ProcessName own = OwnProcess().value();
  EXPECT_EQ(own.pid, getpid());
  EXPECT_EQ(own.start, ReadProcessStart(getpid()));
  EXPECT_NE(own.pid_namespace, 0U);
}

TEST(FormerServers, ThoseThatLiveAreToldOnceWhenTheyEnd) {
  SteadyClock clock;
  const Sleeper first, second;
  FormerServers former = FormerServers::Watch(Noted({first.name(), second.name()})).value();
  EXPECT_EQ(former.living(), 3U);
  EXPECT_EQ(former.TakeEnded(), 0U);
  EXPECT_FALSE(former.Await(1, 0, &clock));
  EXPECT_FALSE(Readable(former.event_fd(), 0));

  first.Kill();
  ASSERT_TRUE(Readable(former.event_fd(), 10'000)) << "nobody has reaped it";
  EXPECT_EQ(former.TakeEnded(), 1U);
  EXPECT_EQ(former.TakeEnded(), 0U);
  EXPECT_EQ(former.living(), 2U);
  EXPECT_FALSE(Readable(former.event_fd(), 0));
  EXPECT_TRUE(former.Await(1, 0, &clock)) << "nobody else was asked for";
  second.Kill();
  EXPECT_TRUE(former.Await(2, 10 * kNsPerSecond, &clock));
  EXPECT_EQ(former.living(), 0U);
}

TEST(FormerServers, OthersWithItsPidAndThoseOfOtherNamespacesCountAsEnded) {
  const Sleeper sleeper;
  ProcessName reused = sleeper.name(), elsewhere = sleeper.name(), ended = sleeper.name();
  reused.start -= 1;
  elsewhere.pid_namespace += 1;
  {
    const Sleeper gone;
    ended = gone.name();
  }
  const FormerServers former = FormerServers::Watch(Noted({reused, elsewhere, ended, {}})).value();
  EXPECT_EQ(former.living(), 0U);
  EXPECT_EQ(former.event_fd(), -1) << "there is nothing to tell";
}

// --- jobs that wait ---

shm::JobSpec SpecOf(const std::string& name, uint32_t on_gpu = 0) {
  shm::JobSpec spec = MakeSpec({.name = name,
                                .dtype = DType::kBF16,
                                .chunks = 4,
                                .chunk_elements = 192,
                                .max_grad_norm = 2});
  spec.states_on_gpu = on_gpu;
  return spec;
}

void Train(SmallTrainer* trainer, uint64_t from, uint64_t steps) {
  for (uint64_t step = from; step < steps; ++step)
    ASSERT_EQ(trainer->Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0U);
}

Weights Undisturbed(uint64_t steps) {
  ServeWorld world({.pool_bytes = 32 * kMiB});
  SmallTrainer trainer(&world, SpecOf("undisturbed"));
  EXPECT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  Train(&trainer, 0, steps);
  return trainer.FetchAll();
}

class JobsThatWait : public ::testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options = WithLease();
    options.pool_bytes = 32 * kMiB;
    return options;
  }
  void TearDown() override { SetPointHook({}); }
  void BringGpus() { world_->BringFromEach({world_.gpu(0), world_.gpu(1)}); }
  void BringNothing() { world_->BringFrom(nullptr); }
  // One that brings a GPU, or lies on the host.
  std::unique_ptr<SmallTrainer> Begin(const shm::JobSpec& spec, bool on_gpu, uint64_t steps) {
    on_gpu ? BringGpus() : BringNothing();
    auto trainer = std::make_unique<SmallTrainer>(&*world_, spec);
    EXPECT_TRUE(trainer->JoinAll());
    trainer->PutWeights(7);
    Train(trainer.get(), 0, steps);
    return trainer;
  }
  void KillAndLetLinger() {
    world_->LetKilledLinger(true);
    world_->Restart();
    world_->LetKilledLinger(false);
    ASSERT_TRUE(world_->recovered().ok()) << world_->recovered().Line();
  }
  void ComeBack(SmallTrainer* trainer) {
    for (const auto& rank : trainer->ranks()) {
      ASSERT_TRUE(world_->Resume(rank.get(), trainer->spec()));
      ASSERT_TRUE(world_->TakeReply<Attached>().has_value());
    }
  }
  // Those who come back, and newcomers of that name, are told to try again.
  void ExpectToldToWait(SmallTrainer* trainer) {
    BringGpus();
    world_->AskToResume(trainer->rank(0), trainer->spec());
    world_->Settle();
    const auto refused = world_->TakeReply<Refused>();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->why.id(), ErrorId::kNotReady) << refused->why.Line();
    world_->Reserve(trainer->spec(), 0);
    world_->Settle();
    const auto newcomer = world_->TakeReply<Refused>();
    ASSERT_TRUE(newcomer.has_value());
    EXPECT_EQ(newcomer->why.id(), ErrorId::kNotReady) << newcomer->why.Line();
    EXPECT_NE(newcomer->why.what().find("(" + trainer->spec().name + ")"), std::string::npos)
        << newcomer->why.Line();
  }
  HealthCheck HealthOf(const std::string& code) {
    world_->Post(SnapshotWanted{});
    world_->Settle();
    const auto ready = world_->TakeReply<SnapshotReady>();
    EXPECT_TRUE(ready.has_value());
    for (const HealthCheck& check : CheckHealth({.snapshot = ready->snapshot})) {
      if (check.code == code) return check;
    }
    ADD_FAILURE() << "there is no check " << code;
    return {};
  }
  // What a copy of the dead server still does.
  void WriteLate() {
    ASSERT_FALSE(world_->tables().set_aside.empty());
    const JobStates& states = world_->tables().set_aside.front().states();
    for (ChunkId id = 0; id < states.spec().chunks.size(); ++id) {
      std::byte* gradient = states.table().GradientBytes(states.chunk(id), 0);
      if (gradient != nullptr && states.chunk(id).state != ChunkState::kGradients)
        std::memset(gradient, 0x7b, 192 * 4);
    }
  }

  GpuWorld world_{Options()};
};

TEST_F(JobsThatWait, OneThatBroughtAGpuIsSetAsideAndOthersGoOnAtOnce) {
  const Weights expected = Undisturbed(4);
  const auto on_host = Begin(SpecOf("host"), false, 2);
  const auto on_gpu = Begin(SpecOf("gpu"), true, 2);
  world_.Pace(16);
  on_gpu->rank(0).Submit({0, 0, 192, 0, 2, 0});
  for (int turn = 0; turn < 3; ++turn) world_->loop().Turn();
  const uint64_t free = world_->pool().free_bytes();
  KillAndLetLinger();
  world_.Pace(UINT64_MAX);
  ASSERT_EQ(world_->tables().jobs.size(), 1U);
  EXPECT_EQ(world_->tables().jobs[0]->spec().name, "host");
  ASSERT_EQ(world_->tables().set_aside.size(), 1U);
  EXPECT_EQ(world_->pool().free_bytes(), free) << "its places stay its own";
  ExpectToldToWait(on_gpu.get());
  const HealthCheck told = HealthOf("JOB_SET_ASIDE");
  EXPECT_EQ(told.severity, Severity::kWarn);
  ASSERT_EQ(told.detail.size(), 1U);
  EXPECT_NE(told.detail[0].find("gpu: job 2 (gpu) waits for the end of process"), std::string::npos)
      << told.detail[0];

  BringNothing();
  ComeBack(on_host.get());
  Train(on_host.get(), 2, 4);
  EXPECT_TRUE(Same(on_host->FetchAll(), expected));
  WriteLate();
  ExpectToldToWait(on_gpu.get());

  world_->EndLingering();
  world_->Settle();
  EXPECT_TRUE(world_->tables().set_aside.empty());
  EXPECT_EQ(HealthOf("JOB_SET_ASIDE").severity, Severity::kOk);
  BringGpus();
  ComeBack(on_gpu.get());
  Train(on_gpu.get(), 2, 4);
  EXPECT_TRUE(Same(on_gpu->FetchAll(), expected));
  on_gpu->LeaveAll();
  on_host->LeaveAll();
  EXPECT_EQ(world_->pool().free_bytes(), world_->pool().total_bytes());
}

// Where the memory of a job lies that cannot be trusted is not known: nobody gets any.
TEST_F(JobsThatWait, MemoryOfADamagedOneIsGivenToNobodyWhileAGpuMayCopyIntoIt) {
  const Weights expected = Undisturbed(4);
  const auto on_host = Begin(SpecOf("host"), false, 2);
  const auto on_gpu = Begin(SpecOf("gpu"), true, 2);
  world_->tables().FindJob("gpu")->states->record().uid ^= 1;
  KillAndLetLinger();
  ASSERT_EQ(world_->tables().jobs.size(), 1U);
  EXPECT_TRUE(world_->tables().set_aside.empty());
  world_->LetKilledLinger(true);
  for (int restarts = 0; restarts < 2; ++restarts) {
    BringNothing();
    world_->Reserve(SpecOf("newcomer"), 0);
    world_->Settle();
    const auto refused = world_->TakeReply<Refused>();
    ASSERT_TRUE(refused.has_value()) << restarts;
    EXPECT_EQ(refused->why.id(), ErrorId::kNotReady) << refused->why.Line();
    std::vector<Extent> taken;
    EXPECT_FALSE(world_->pool().Take(std::array{kPageBytes}, &taken));
    if (restarts == 0) world_->Restart();  // the next one knows of it as well
  }
  world_->LetKilledLinger(false);
  ComeBack(on_host.get());
  Train(on_host.get(), 2, 4);
  EXPECT_TRUE(Same(on_host->FetchAll(), expected)) << "others go on";

  world_->EndLingering();
  world_->Settle();
  const auto newcomer = Begin(SpecOf("newcomer"), false, 2);
  Train(newcomer.get(), 2, 4);
  EXPECT_TRUE(Same(newcomer->FetchAll(), expected));
  newcomer->LeaveAll();
  on_host->LeaveAll();
  EXPECT_EQ(world_->pool().free_bytes(), world_->pool().total_bytes());
  world_->Restart();
  EXPECT_TRUE(world_->tables().withheld.slots.empty()) << "it is in the index no longer";
}

TEST_F(JobsThatWait, ADamagedOneHoldsUpNobodyWhereNoServerLingers) {
  const auto on_gpu = Begin(SpecOf("gpu"), true, 2);
  world_->tables().FindJob("gpu")->states->record().uid ^= 1;
  world_->Restart();
  EXPECT_TRUE(world_->tables().jobs.empty());
  BringNothing();
  EXPECT_NE(world_->Join(SpecOf("newcomer"), 0), nullptr);
}

TEST_F(JobsThatWait, NobodyWaitsWhereTheProcessHasEnded) {
  const auto on_gpu = Begin(SpecOf("gpu"), true, 1);
  world_->Restart();
  EXPECT_TRUE(world_->tables().set_aside.empty());
  ComeBack(on_gpu.get());
  Train(on_gpu.get(), 1, 2);
  EXPECT_TRUE(Same(on_gpu->FetchAll(), Undisturbed(2)));
}

// Workers of the next server use the areas from which its open tiles are restored.
TEST_F(JobsThatWait, TilesThatWereOpenAreRestoredBeforeOthersWork) {
  struct Killed {};
  const Weights expected = Undisturbed(3);
  const auto on_host = Begin(SpecOf("host"), false, 2);
  const auto on_gpu = Begin(SpecOf("gpu"), true, 2);
  on_gpu->Submit({.learning_rate = 0.05F, .seed = 3});
  world_->Settle();
  SetPointHook([](const char* name) {
    if (std::strcmp(name, "optim.tile_written") == 0) throw Killed();
  });
  EXPECT_THROW((on_gpu->EndStep({.learning_rate = 0.05F, .seed = 3}), world_->Settle()), Killed);
  SetPointHook({});
  KillAndLetLinger();
  ASSERT_EQ(world_->tables().set_aside.size(), 1U);
  BringNothing();
  ComeBack(on_host.get());
  Train(on_host.get(), 2, 3);
  EXPECT_TRUE(Same(on_host->FetchAll(), expected));

  world_->EndLingering();
  world_->Settle();
  BringGpus();
  ComeBack(on_gpu.get());
  world_->Settle();
  on_gpu->set_version(3);
  EXPECT_TRUE(Same(on_gpu->FetchAll(), expected)) << "the step was sealed";
}

TEST_F(JobsThatWait, SharesOnAGpuStayWithTheKeeperAndTheirPlacesTheirOwn) {
  const auto with_states = Begin(SpecOf("gpu", 2), true, 2);
  ASSERT_EQ(world_->shares_kept(), 1U);
  KillAndLetLinger();
  world_->Settle();
  ASSERT_EQ(world_->tables().set_aside.size(), 1U);
  EXPECT_EQ(world_->shares_kept(), 1U) << "the keeper was not told to let go";
  ExpectToldToWait(with_states.get());
  const auto other = Begin(SpecOf("other", 2), true, 2);
  EXPECT_EQ(world_->shares_kept(), 2U) << "in another place";

  world_->EndLingering();
  world_->Settle();
  BringGpus();
  ComeBack(with_states.get());
  for (SmallTrainer* trainer : {with_states.get(), other.get()}) {
    Train(trainer, 2, 4);
    EXPECT_TRUE(Same(trainer->FetchAll(), Undisturbed(4)));
    trainer->LeaveAll();
  }
  EXPECT_EQ(world_->shares_kept(), 0U);
}

TEST_F(JobsThatWait, OnlyForThoseServersThatCopiedForThem) {
  const auto first = Begin(SpecOf("first"), true, 2);
  KillAndLetLinger();
  const auto second = Begin(SpecOf("second"), true, 2);
  world_->Restart();  // the second server ends with its process; the first has still not
  ASSERT_EQ(world_->tables().set_aside.size(), 1U);
  EXPECT_EQ(world_->tables().set_aside[0].states().spec().name, "first");
  BringGpus();
  ComeBack(second.get());
  Train(second.get(), 2, 3);

  KillAndLetLinger();  // now both wait, for different ones
  EXPECT_EQ(world_->tables().set_aside.size(), 2U);
  world_->Post(FormerServersEnded{BitOf(0)});
  world_->Settle();
  ASSERT_EQ(world_->tables().set_aside.size(), 1U)
      << "whom the first server alone copied for goes on";
  EXPECT_EQ(world_->tables().set_aside[0].states().spec().name, "second");
  world_->EndLingering();
  world_->Settle();
  ASSERT_EQ(world_->tables().jobs.size(), 2U);
  EXPECT_LT(world_->tables().jobs[0]->id, world_->tables().jobs[1]->id);
  ComeBack(first.get());
  ComeBack(second.get());
  Train(first.get(), 2, 4);
  Train(second.get(), 3, 4);
  EXPECT_TRUE(Same(first->FetchAll(), Undisturbed(4)));
  EXPECT_TRUE(Same(second->FetchAll(), Undisturbed(4)));
}

TEST_F(JobsThatWait, AKillAsTheyAreTakenUpChangesNoBit) {
  struct Killed {};
  for (const std::string point : {"server.former_forgotten", "server.job_taken_up"}) {
    const auto trainer = Begin(SpecOf(point), true, 2);
    KillAndLetLinger();
    SetPointHook([&point](const char* name) {
      if (point == name) throw Killed();
    });
    world_->EndLingering();
    EXPECT_THROW(world_->Settle(), Killed);
    SetPointHook({});
    world_->Restart();
    EXPECT_TRUE(world_->tables().set_aside.empty());
    ComeBack(trainer.get());
    Train(trainer.get(), 2, 3);
    EXPECT_TRUE(Same(trainer->FetchAll(), Undisturbed(3)));
    trainer->LeaveAll();
  }
}

// A frozen chunk that is not there may have been on its way from any GPU: whoever lists it waits as
// well, and newcomers too.
TEST_F(JobsThatWait, WithThoseWhoShareAFrozenChunkThatIsNotThere) {
  const std::vector<std::byte> content(4096, std::byte{3}), other(4096, std::byte{4});
  const auto listing = [](shm::JobSpec spec, const std::vector<std::byte>& bytes) {
    spec.frozen.push_back({bytes.size() / sizeof(uint16_t), spec.dtype, HashOf(bytes)});
    return spec;
  };
  const auto on_gpu = Begin(listing(SpecOf("gpu"), content), true, 1);
  const auto sharing = Begin(listing(SpecOf("sharing"), content), false, 1);
  const auto plain = Begin(SpecOf("plain"), false, 1);
  KillAndLetLinger();
  ASSERT_EQ(world_->tables().set_aside.size(), 2U);
  ASSERT_EQ(world_->tables().jobs.size(), 1U);
  BringNothing();
  ComeBack(plain.get());
  Train(plain.get(), 1, 2);
  world_->Reserve(listing(SpecOf("newcomer"), content), 0);
  world_->Settle();
  const auto refused = world_->TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why.id(), ErrorId::kNotReady) << refused->why.Line();
  const auto newcomer = Begin(listing(SpecOf("other"), other), false, 1);

  world_->EndLingering();
  world_->Settle();
  EXPECT_EQ(world_->tables().jobs.size(), 4U);
  ComeBack(sharing.get());
  Train(sharing.get(), 1, 2);
  EXPECT_TRUE(Same(sharing->FetchAll(), Undisturbed(2)));
}

// Its memory would be a newcomer's.
TEST_F(JobsThatWait, OneThatIsRemovedKeepsItsPlacesWhileAGpuCopiesForIt) {
  const auto trainer = Begin(SpecOf("gpu"), true, 1);
  world_.Pace(16);
  trainer->rank(0).Submit({0, 0, 192, 0, 1, 0});
  for (int turn = 0; turn < 3; ++turn) world_->loop().Turn();
  const uint64_t free = world_->pool().free_bytes();
  world_.Pace(0);
  EXPECT_TRUE(world_->Command(ReleaseJob{"gpu", true}).ok());
  for (int turn = 0; turn < 10; ++turn) world_->loop().Turn();
  ASSERT_EQ(world_->tables().jobs.size(), 1U) << "its copy is under way";
  KillAndLetLinger();
  world_.Pace(UINT64_MAX);
  EXPECT_EQ(world_->pool().free_bytes(), free);
  world_->Settle();
  EXPECT_EQ(world_->pool().free_bytes(), free);

  world_->EndLingering();
  world_->Settle();
  EXPECT_TRUE(world_->tables().jobs.empty());
  EXPECT_EQ(world_->pool().free_bytes(), world_->pool().total_bytes());
  world_->Restart();
  EXPECT_TRUE(world_->tables().jobs.empty() && world_->tables().set_aside.empty())
      << "it is in the index no longer";
}

TEST_F(JobsThatWait, OneThatIsRemovedIsGoneAtOnceWhereThatProcessHasEnded) {
  const auto trainer = Begin(SpecOf("gpu"), true, 1);
  world_.Pace(16);
  trainer->rank(0).Submit({0, 0, 192, 0, 1, 0});
  for (int turn = 0; turn < 3; ++turn) world_->loop().Turn();
  world_.Pace(0);
  EXPECT_TRUE(world_->Command(ReleaseJob{"gpu", true}).ok());
  world_->Restart();
  EXPECT_TRUE(world_->tables().jobs.empty());
  EXPECT_EQ(world_->pool().free_bytes(), world_->pool().total_bytes());
}

TEST_F(JobsThatWait, AServerThatHandsOverWithNothingUnderWayIsNotWaitedFor) {
  const auto trainer = Begin(SpecOf("gpu"), true, 2);
  ASSERT_EQ(ServersIn(world_->index()).size(), 1U);
  world_->Post(StopServing{true});
  world_->Settle();
  ASSERT_TRUE(world_->loop().stopped());
  EXPECT_TRUE(ServersIn(world_->index()).empty());
  KillAndLetLinger();
  EXPECT_TRUE(world_->tables().set_aside.empty());
  ComeBack(trainer.get());
  Train(trainer.get(), 2, 3);
  EXPECT_TRUE(Same(trainer->FetchAll(), Undisturbed(3)));
}

TEST_F(JobsThatWait, AServerThatStopsMeanwhileLeavesThemToTheNext) {
  const auto trainer = Begin(SpecOf("gpu"), true, 2);
  KillAndLetLinger();
  world_->Post(StopServing{true});
  world_->EndLingering();
  world_->Settle();
  ASSERT_TRUE(world_->loop().stopped());
  EXPECT_TRUE(world_->tables().handing_over) << "it is worth being held";
  world_->Restart();
  EXPECT_TRUE(world_->tables().set_aside.empty());
  ComeBack(trainer.get());
  Train(trainer.get(), 2, 3);
  EXPECT_TRUE(Same(trainer->FetchAll(), Undisturbed(3)));
}

}  // namespace former_servers_test
}  // namespace tidepool::memserver
