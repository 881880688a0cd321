// Jobs over one frozen base, as whole processes: exact bytes while they are there, nothing when
// they have gone, whichever process is killed meanwhile.
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "shm/spec/frozen.h"
#include "shm/spec/state_bytes.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace frozen_base_test {

constexpr uint32_t kChunks = 3;
constexpr uint64_t kElements = 4096;

ThinOptions Adapter() {
  ThinOptions options;
  options.name = "a";
  options.frozen_chunks = kChunks;
  return options;
}

uint64_t BaseBytes() {
  return shm::FrozenPoolBytes(SpecOf(Adapter()));
}
uint64_t AdapterBytes() {
  return shm::StateBytesOf(SpecOf(Adapter())).total();
}

int64_t PoolField(const std::string& status, const std::string& key) {
  return NumberIn(status.substr(status.find("\"pool\":")), key);
}

class FrozenBase : public DurableDaemon {
 protected:
  // Flags of a job of 20 steps over the base.
  static std::vector<std::string> Flags(const std::string& name,
                                        std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--name", name, "--frozen", std::to_string(kChunks), "--elements",
                             std::to_string(kElements), "--steps", "20"});
    return more;
  }
  Process TrainAndStay(const std::string& name, std::vector<std::string> more = {}) const {
    more.push_back("--stay");
    return Train(Flags(name, more));
  }
  static void ExpectStays(ChildProcess* job) {
    ASSERT_TRUE(job->WaitForOutput(" stays", kLimit)) << job->Output();
  }
  void LetGo(ChildProcess* job, const std::string& hash) const {
    ExpectStays(job);
    job->Signal(SIGUSR1);
    ExpectDone(job, hash);
  }
  void ExpectNothingIsLeft() const {
    EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
    EXPECT_EQ(PoolField(AskAdmin(directory_.path(), "/v1/status"), "frozen_bytes"), 0);
  }
  // The hash of the adapters, which does not depend on the base.
  std::string HashAlone() const {
    const Process alone = Train({"--name", "alone", "--steps", "20"});
    EXPECT_EQ(alone->Wait(kLimit)->exit_code, 0) << alone->Output();
    return HashIn(alone->Output());
  }
};

TEST_F(FrozenBase, FourJobsTakeTheBaseOnceAndFourAdaptersExactly) {
  const Process server = Serve();
  const std::string hash = HashAlone();
  std::vector<Process> jobs;
  jobs.push_back(TrainAndStay("a"));
  jobs.push_back(TrainAndStay("b", {"--frozen-written"}));
  jobs.push_back(TrainAndStay("c"));
  jobs.push_back(TrainAndStay("d"));
  int64_t put = 0;
  for (const Process& job : jobs) {
    ExpectStays(job.get());
    put += std::stoll(job->Output().substr(job->Output().find("frozen put ") + 11));
  }
  EXPECT_EQ(put, static_cast<int64_t>(kChunks * kElements * sizeof(float)))
      << "each byte was uploaded once";
  const std::string status = AskAdmin(directory_.path(), "/v1/status");
  EXPECT_EQ(PoolField(status, "frozen_bytes"), static_cast<int64_t>(BaseBytes()));
  EXPECT_EQ(PoolField(status, "bytes_used"),
            static_cast<int64_t>(BaseBytes() + 4 * AdapterBytes()));
  EXPECT_NE(Memctl({"status"}).find("3 frozen chunks, each counted once"), std::string::npos);
  EXPECT_NE(Memctl({"ps"}).find("POOL+FROZEN"), std::string::npos);
  EXPECT_NE(Memctl({"residency", "--job", "c"}).find("===  "), std::string::npos)
      << Memctl({"residency", "--job", "c"});
  for (const Process& job : jobs) LetGo(job.get(), hash);
  ExpectNothingIsLeft();
  EXPECT_EQ(NumberIn(AskAdmin(directory_.path(), "/v1/status"), "sessions_ended_badly"), 0)
      << "writers are refused, not ended";
}

TEST_F(FrozenBase, TrainersThatAreKilledLeaveNothingOfTheBaseBehind) {
  const Process server = Serve({"--lease", "0s"});
  const std::string hash = HashAlone();
  const Process stays = TrainAndStay("a");
  ExpectStays(stays.get());
  std::vector<Process> killed;
  for (const char* name : {"b", "c", "d"}) killed.push_back(TrainAndStay(name));
  for (const Process& job : killed) ExpectStays(job.get());
  for (const Process& job : killed) job->Signal(SIGKILL);
  const Holdings one{1, 1, static_cast<int64_t>(BaseBytes() + AdapterBytes()),
                     static_cast<int64_t>(SpecOf(Adapter()).rcache_bytes)};
  EXPECT_EQ(WaitForHoldings(directory_.path(), one, kLimit), one);
  stays->Signal(SIGKILL);
  ExpectNothingIsLeft();
}

TEST_F(FrozenBase, AnUploaderThatIsKilledIsFollowedByTheNext) {
  const Process server = Serve();
  const std::string hash = HashAlone();
  auto command = ThinCommand(directory_.path(), Flags("killed"));
  ChildProcess killed(command, {"TIDEPOOL_KILL_AT=client.put_sent:2"});
  EXPECT_EQ(killed.Wait(kLimit)->signal, SIGKILL) << killed.Output();
  ExpectDone(Train(Flags("next")).get(), hash);
  ExpectNothingIsLeft();
}

TEST_F(FrozenBase, OtherBytesThanWereNamedAreRefusedAndHurtTheirAuthorAlone) {
  const Process server = Serve();
  const std::string hash = HashAlone();
  const Process liar = Train(Flags("liar", {"--frozen-wrong"}));
  const Process honest = Train(Flags("honest"));
  const int liars = liar->Wait(kLimit)->exit_code;
  EXPECT_EQ(liars, liar->Output().find("TP3019") != std::string::npos ? 7 : 0)
      << "it is told, unless the other one has put them all: " << liar->Output();
  ExpectDone(honest.get(), hash);
  const Process alone = Train(Flags("liar", {"--frozen-wrong"}));
  EXPECT_EQ(alone->Wait(kLimit)->exit_code, 7) << alone->Output();
  EXPECT_NE(alone->Output().find("TP3019"), std::string::npos) << alone->Output();
  ExpectNothingIsLeft();
}

TEST_F(FrozenBase, AServerThatIsReplacedHasTheBaseOnceAgain) {
  const Process first = Serve();
  const std::string hash = HashAlone();
  const Process a = TrainAndStay("a"), b = TrainAndStay("b");
  ExpectStays(a.get());
  ExpectStays(b.get());
  HandOver(first.get());
  const Process next = Serve();
  const std::string status = AskAdmin(directory_.path(), "/v1/status");
  EXPECT_EQ(PoolField(status, "bytes_used"),
            static_cast<int64_t>(BaseBytes() + 2 * AdapterBytes()));
  ExpectDone(Train(Flags("c")).get(), hash);
  LetGo(a.get(), hash);
  LetGo(b.get(), hash);
  ExpectNothingIsLeft();
}

class FrozenBaseKill : public FrozenBase, public ::testing::WithParamInterface<const char*> {};

TEST_P(FrozenBaseKill, OfTheServerCostsNobodyAnything) {
  const Process server = Serve({"--no-respawn"}, {std::string("TIDEPOOL_KILL_AT=") + GetParam()});
  const Process a = Train(Flags("a")), b = Train(Flags("b"));
  ASSERT_EQ(server->Wait(kLimit)->signal, SIGKILL);
  const Process next = Serve();
  const auto ended = a->Wait(kLimit);
  ASSERT_TRUE(ended && ended->exit_code == 0) << a->Output();
  ExpectDone(b.get(), HashIn(a->Output()));
  ExpectDone(a.get(), HashAlone());
  ExpectNothingIsLeft();
}

INSTANTIATE_TEST_SUITE_P(AtEachPoint, FrozenBaseKill,
                         ::testing::Values("server.frozen_claimed:1", "server.frozen_claimed:3",
                                           "server.frozen_put:1", "server.frozen_put:4",
                                           "server.frozen_sealed:1", "server.frozen_sealed:3"),
                         [](const ::testing::TestParamInfo<const char*>& at) {
                           std::string name(at.param + 14);
                           name.replace(name.find(':'), 1, "_");
                           return name;
                         });

}  // namespace frozen_base_test
}  // namespace tidepool::testing
