// The museum: known failures of other systems, each as a test of ours. docs/museum.md lists all of
// them with the tests that cover them; here are those that no other test asserts. The comment of a
// test says what happened there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/slow_device.h"
#include "tests/fakes/small_trainer.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/lying_client.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace museum_test {

constexpr int64_t kLimit = 20 * kNsPerSecond;

std::string RunBeside(const std::string& socket_dir) {
  ChildProcess process(ThinCommand(socket_dir, {"--name", "beside"}));
  const auto end = process.Wait(kLimit);
  return end && end->exit_code == 0 ? process.Output() : "failed: " + process.Output();
}

// A daemon, the bits of an undisturbed job, and everything back to its baseline at the end.
class Museum : public ::testing::Test {
 protected:
  void SetUp() override {
    expected_ = RunBeside(daemon_.socket_dir());
    ASSERT_EQ(expected_.find("failed"), std::string::npos) << expected_;
    ASSERT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit), kNothing);
    descriptors_ = SettledDescriptors();
  }
  void TearDown() override {
    EXPECT_EQ(RunBeside(daemon_.socket_dir()), expected_);
    EXPECT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit), kNothing);
    EXPECT_EQ(SettledDescriptors(), descriptors_);
  }
  static shm::JobSpec Spec() {
    ThinOptions options;
    options.name = "piece";
    return SpecOf(options);
  }
  std::unique_ptr<LyingClient> Attach() {
    auto client = LyingClient::Attach(daemon_.socket_dir(), Spec(), 0);
    EXPECT_TRUE(client.ok()) << client.status().Format();
    return client.ok() ? std::move(client).value() : nullptr;
  }

  const DaemonInProcess daemon_;
  std::string expected_;
  size_t descriptors_ = 0;
};

// iceoryx #1546: an application was killed between taking a cell of a shared queue and giving it
// back; others then looped for ever.
// Here a request that was half written is no request, and the end of its writer frees the ring.
TEST_F(Museum, Iceoryx1546LostQueueCell) {
  auto client = Attach();
  ASSERT_TRUE(client && client->PutAllWeights(Spec()).ok());
  const uint64_t next = Spec().chunks.size();  // behind the requests that put the weights
  for (auto& word : client->slot(next)->words) word.store(~uint64_t{0});
  client->Ring();
  EXPECT_EQ(RunBeside(daemon_.socket_dir()), expected_);
  EXPECT_EQ(HoldingsOf(daemon_.socket_dir()).sessions, 1)
      << "nothing was published, so nothing is wrong";
}

// iceoryx #653: an application that was started again at once, under the same name, ended the
// daemon.
// Here the next incarnation waits for the end of the former one, and then trains.
TEST_F(Museum, Iceoryx653FastRestartUnderTheSameName) {
  for (int i = 0; i < 20; ++i) {
    ChildProcess former(ThinCommand(daemon_.socket_dir(), {"--name", "same"}),
                        {"TIDEPOOL_KILL_AT=client.gradient_sent:3"});
    ASSERT_TRUE(former.Wait(kLimit).has_value());
    ChildProcess next(ThinCommand(daemon_.socket_dir(), {"--name", "same", "--persistent"}));
    const auto end = next.Wait(kLimit);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->exit_code, 0) << next.Output();
    EXPECT_EQ(next.Output(), expected_);
  }
}

// iceoryx #654: a client that misbehaved again and again filled the disk with lines of the daemon's
// log.
// Here one line a minute says what happened and how many were left out.
TEST(MuseumLog, Iceoryx654LogFlood) {
  MemserverProcess server;
  const std::string path = shm::DataSocketPath(server.socket_dir());
  const std::vector<std::byte> nonsense(16, std::byte{7});
  for (int i = 0; i < 500; ++i) {
    auto socket = shm::ConnectSocket(RealClock(), path, kLimit);
    ASSERT_TRUE(socket.ok());
    ASSERT_EQ(shm::SendPacket(socket->get(), nonsense), shm::SocketResult::kDone);
    if (i % 50 == 0) {
      EXPECT_TRUE(shm::WaitForSocket(socket->get(), POLLIN, kLimit));
    }
  }
  ASSERT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kLimit), kNothing);
  const std::string log = server.process().Output();
  EXPECT_NE(log.find("connection ended"), std::string::npos) << "the first is told";
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 10) << log;
  EXPECT_TRUE(server.StopsCleanly());
}

// Mooncake #2336: when the master was dead, its clients could not give their registered memory
// back, and leaked it.
// Here a client's clean-up needs no server: descriptors and mappings of this process return.
TEST(MuseumClient, Mooncake2336CleanUpWithADeadPeer) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);)
      count += line.find("memfd:tidepool") != std::string::npos ? 1 : 0;
    return count;
  };
  auto server = std::make_unique<MemserverProcess>();
  ThinOptions options;
  options.socket_dir = server->socket_dir();
  options.steps = 3;
  ASSERT_TRUE(RunThinJob(options).ok());  // what is opened once is open now
  const size_t descriptors = SettledDescriptors();
  ASSERT_EQ(mappings(), 0U);
  options.steps = 1'000'000;
  options.after_step = [&server](uint64_t step) {
    if (step == 5) server->process().Signal(SIGKILL);
  };
  const auto result = RunThinJob(options);
  EXPECT_EQ(result.status().id(), ErrorId::kServerGone) << result.status().Format();
  EXPECT_EQ(mappings(), 0U);
  EXPECT_EQ(SettledDescriptors(), descriptors);
}

// Firecracker checked only the last byte of a queue in guest memory, so that a queue could begin in
// a hole: the device then panicked.
// Here every byte of a session's memory was touched before its client had it; holes that the client
// punches later read as zeros, which end its session or are its own numbers.
TEST_F(Museum, FirecrackerHoleInTheQueue) {
  auto client = Attach();
  ASSERT_TRUE(client && client->PutAllWeights(Spec()).ok());
  const auto fds = client->segment_fds();
  const auto punch = [](int fd, uint64_t bytes) {
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
  };
  EXPECT_NE(punch(fds[1], shm::kChannelBytes), 0) << "the answers are the server's to write";
  EXPECT_EQ(punch(fds[2], Spec().rcache_bytes), 0) << "its own numbers";
  shm::Request fetch{};
  fetch.op = static_cast<uint32_t>(shm::Op::kFetch);
  fetch.element_count = 4096;
  shm::Completion completion{};
  // One lap: then every place of the ring holds a request.
  for (uint64_t i = 0; i < shm::kRingEntries; ++i) {
    client->Submit(fetch);
    ASSERT_TRUE(client->Await(&completion, kLimit)) << "into a block that has pages no more";
    ASSERT_EQ(completion.error, 0U);
  }
  EXPECT_EQ(punch(fds[0], shm::kChannelBytes), 0) << "a client may damage its own requests";
  client->Ring();
  EXPECT_EQ(client->AwaitEnd().id(), ErrorId::kProtocolViolation);
}

// DeepSpeed #7965: a buffer was used again before the copy out of it was done, and steps trained on
// other numbers.
// Here a gradient is answered, and its block given back, only when the last byte has been copied.
TEST(MuseumCopies, DeepSpeed7965BufferReusedBeforeItsCopyIsDone) {
  memserver::SlowDevice device;
  memserver::WorldOptions options;
  options.device = &device;
  memserver::ServeWorld world(options);
  const shm::JobSpec spec = memserver::MakeSpec({.chunks = 1});
  auto rank = world.Join(spec, 0);
  ASSERT_NE(rank, nullptr);
  std::fill_n(rank->At<float>(0), 192, 1.0F);
  const uint64_t put = rank->Put(0, 0, 192, 0);
  world.loop().Turn();
  device.Move(0, kMiB);
  EXPECT_EQ(world.Await(rank.get(), put).error, 0U);
  std::fill_n(rank->At<float>(0), 192, 2.0F);
  const uint64_t gradient = rank->Submit({0, 0, 192, 0, 0, 0});
  for (int i = 0; i < 191; ++i) {  // four bytes at a time, but for the last
    world.Settle();
    device.Move(0, 4);
    EXPECT_EQ(rank->Take(), std::nullopt) << "after " << 4 * (i + 1) << " bytes";
  }
  world.Settle();
  device.Move(0, 4);
  EXPECT_EQ(world.Await(rank.get(), gradient).error, 0U);
  std::fill_n(rank->At<float>(0), 192, 9.0F);  // it is the trainer's again
  // Every element of a parameter took the gradient 2, and none the 9.
  double sum = 0;
  for (const auto& parameter : spec.parameters)
    sum += 4.0 * static_cast<double>(parameter.element_count);
  const uint64_t end = rank->EndStep(0, 0.01F);
  EXPECT_DOUBLE_EQ(world.Await(rank.get(), end).grad_norm, std::sqrt(sum));
}

// DeepSpeed #1643 and #3097: Adam returned before its work was done, and readers saw parameters of
// two steps.
// Here the new version of a chunk can be read when, and only when, all of it has been updated.
TEST(MuseumCopies, DeepSpeed1643AdamReturnedBeforeItWasDone) {
  memserver::WorldOptions options;
  options.loop.run_inline_work = false;
  memserver::ServeWorld world(options);
  memserver::SmallTrainer trainer(&world, memserver::MakeSpec({.chunks = 1}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(4);
  trainer.Submit({.seed = 1});
  memserver::FakeRank& rank = trainer.rank(0);
  const uint64_t end = rank.EndStep(0, 0.01F);
  for (world.Settle(); world.tables().jobs.front()->states->sealed_version() == 0; world.Settle())
    world.team().RunOne(0);
  EXPECT_EQ(world.Await(&rank, end).error, 0U);
  const uint64_t read = rank.Fetch(0, 0, 192, 0, 1);
  world.Settle();
  EXPECT_EQ(rank.Take(), std::nullopt) << "the step is sealed, and its update has not run";
  ASSERT_GT(world.team().waiting(), 0U);
  while (world.team().waiting() > 0) {
    world.team().RunOne(0);
    world.Settle();
  }
  EXPECT_EQ(world.Await(&rank, read).version, 1U);
}

// DeepSpeed #4571: processes were "killed -9" for want of memory, and nothing said why.
// Here whoever lives says which rank of which job has died, in the server's log and in every other
// rank's error.
TEST(MuseumLog, DeepSpeed4571KilledWithoutAWord) {
  MemserverProcess server;
  const auto rank = [&server](const char* number) {
    return std::make_unique<ChildProcess>(ThinCommand(
        server.socket_dir(),
        {"--name", "pair", "--world", "2", "--rank", number, "--steps", "1000000", "--norms"}));
  };
  const auto first = rank("0"), second = rank("1");
  ASSERT_TRUE(first->WaitForOutput("norm 3 ", kLimit)) << first->Output();
  second->Signal(SIGKILL);
  const auto end = first->Wait(kPromptNs);
  ASSERT_TRUE(end.has_value());
  EXPECT_NE(first->Output().find("TP3012"), std::string::npos) << first->Output();
  EXPECT_TRUE(server.process().WaitForOutput("\"rank lost\",\"job\":1,\"rank\":1", kLimit))
      << server.process().Output();
  EXPECT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kLimit), kNothing);
  EXPECT_TRUE(server.StopsCleanly());
}

}  // namespace museum_test
}  // namespace tidepool::testing
