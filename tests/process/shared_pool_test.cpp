// What docs/operations.md promises to jobs that share a pool, with whole processes: numbers,
// waiting, quotas and shares.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/real_clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace shared_pool_test {

// A job of about 6 MiB.
ThinOptions LargeJob(const std::string& name, uint32_t world = 1) {
  ThinOptions options;
  options.name = name;
  options.world = world;
  options.steps = 20;
  options.chunk_elements = 96 * 1024;
  return options;
}

uint64_t PoolBytesOf(const std::string& name, uint32_t world = 1) {
  return shm::StateBytesOf(SpecOf(LargeJob(name, world))).total();
}

int64_t SumIn(const std::string& json, const std::string& part, const std::string& key) {
  const size_t at = json.find("\"" + part + "\":");
  return at == std::string::npos ? -1 : NumberIn(json.substr(at), key);
}

size_t CountIn(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class SharedPool : public DurableDaemon {
 protected:
  Process TrainLarge(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> flags{"--name",  name, "--elements", "98304",
                                   "--steps", "20", "--pause-ms", "5"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Train(flags);
  }
  // Trains, and then stays attached until it is told to go: so a test decides how long the pool is
  // held.
  Process TrainAndHold(const std::string& name) const {
    Process job = TrainLarge(name, {"--norms", "--stay"});
    EXPECT_TRUE(job->WaitForOutput("norm 3 ", kLimit)) << job->Output();
    return job;
  }
  // It goes, and ends with the bits that it would have had alone.
  static void ExpectUndisturbed(ChildProcess* job, const std::string& hash) {
    ASSERT_TRUE(job->WaitForOutput(" stays", kLimit)) << job->Output();
    job->Signal(SIGUSR1);
    ExpectDone(job, hash);
  }
  std::string HashAlone() const {
    const Process alone = TrainLarge("alone");
    EXPECT_EQ(alone->Wait(kLimit)->exit_code, 0) << alone->Output();
    return HashIn(alone->Output());
  }
  std::string Admin(const std::string& path) const { return AskAdmin(directory_.path(), path); }
};

TEST_F(SharedPool, ASecondJobIsRefusedWithTheNumbersAndTheFirstDoesNotNotice) {
  const Process server = Serve();
  const std::string hash = HashAlone();
  const Process first = TrainAndHold("first");
  const std::string status = Admin("/v1/status");
  const auto held = static_cast<int64_t>(PoolBytesOf("first"));
  EXPECT_EQ(SumIn(status, "pool", "bytes_used"), held) << "what admission computed is what is held";
  EXPECT_EQ(SumIn(AskAdmin(directory_.path(), "/v1/quotas"), "accounts", "bytes_used"), held);
  const Process second = TrainLarge("second");
  EXPECT_EQ(second->Wait(kLimit)->exit_code, 5);
  const std::string told = second->Output();
  for (const std::string& part :
       {std::string("TP2101"), std::string("needs 6."),
        "(" + std::to_string(PoolBytesOf("second")) + " bytes)",
        "(" + std::to_string(SumIn(status, "pool", "bytes") - held) + " bytes)",
        std::string("first holds ")}) {
    EXPECT_NE(told.find(part), std::string::npos) << part << " is missing in " << told;
  }
  ExpectUndisturbed(first.get(), hash);
  EXPECT_EQ(NumberIn(Admin("/v1/status"), "sessions_ended_badly"), 0);
}

// The peak of the pool is what admission computed: a job takes it all when it comes, and nothing
// more as long as it trains.
TEST_F(SharedPool, AJobThatTrainsNeverHoldsMoreOrLessThanAdmissionComputed) {
  const Process server = Serve();
  const auto held = static_cast<int64_t>(PoolBytesOf("job"));
  const Process job = TrainLarge("job", {"--stay"});
  std::map<int64_t, int> looks;  // by the bytes that they saw
  do {
    ++looks[SumIn(Admin("/v1/status"), "pool", "bytes_used")];
  } while (!job->WaitForOutput(" stays", 10 * kNsPerMs) && looks[held] < 10000);
  ++looks[SumIn(Admin("/v1/status"), "pool", "bytes_used")];
  for (const auto& [bytes, count] : looks)
    EXPECT_TRUE(bytes == 0 || bytes == held) << bytes << " bytes, " << count << " times";
  EXPECT_GT(looks[held], 0);
  job->Signal(SIGUSR1);
  EXPECT_EQ(job->Wait(kLimit)->exit_code, 0) << job->Output();
}

TEST_F(SharedPool, AJobThatWaitsStartsWithAllItsRanksWhenTheOneBeforeItHasEnded) {
  const Process server = Serve();
  const std::string hash = HashAlone();
  const Process first = TrainAndHold("first");
  std::vector<Process> second;
  for (const char* rank : {"0", "1"}) {
    second.push_back(TrainLarge("second", {"--world", "2", "--rank", rank, "--wait-ms", "60000"}));
    ASSERT_TRUE(
        second.back()->WaitForOutput("waiting for room for up to 60.0 s, at place ", kLimit))
        << second.back()->Output();
  }
  const std::string quotas = Admin("/v1/quotas");
  EXPECT_EQ(CountIn(quotas, "\"name\":\"second\""), 2u) << quotas;
  EXPECT_EQ(SumIn(quotas, "waiting", "pool_bytes"), static_cast<int64_t>(PoolBytesOf("second", 2)));
  EXPECT_NE(Memctl({"quotas"}).find("second"), std::string::npos);
  EXPECT_EQ(SumIn(Admin("/v1/status"), "pool", "bytes_used"),
            static_cast<int64_t>(PoolBytesOf("first")));
  ExpectUndisturbed(first.get(), hash);
  for (const Process& rank : second) {
    const auto ended = rank->Wait(kLimit);
    EXPECT_TRUE(ended && ended->exit_code == 0) << rank->Output();
  }
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
}

TEST_F(SharedPool, WhoeverWaitsDoesSoAgainAtTheNextServer) {
  const Process server = Serve();
  const std::string hash = HashAlone();
  const Process first = TrainAndHold("first");
  const Process second = TrainLarge("second", {"--wait-ms", "60000"});
  ASSERT_TRUE(second->WaitForOutput("waiting for room", kLimit)) << second->Output();
  kill(ServerPid(), SIGKILL);
  ASSERT_TRUE(second->WaitForOutput("memserver is back", kLimit)) << second->Output();
  ASSERT_TRUE(second->WaitForOutput("of the queue: job second needs", kLimit));
  EXPECT_EQ(CountIn(Admin("/v1/quotas"), "\"name\":\"second\""), 1u)
      << "what the kept job holds is held";
  ExpectUndisturbed(first.get(), hash);
  ExpectDone(second.get(), hash);
  EXPECT_EQ(CountIn(second->Output(), "waiting for room"), 2u) << second->Output();
}

TEST_F(SharedPool, AServerThatDiesWhileItQueuesARankLosesNothingButThePlace) {
  const Process server = Serve({"--no-respawn"}, {"TIDEPOOL_KILL_AT=server.rank_queued:1"});
  const std::string hash = HashAlone();
  const Process first = TrainAndHold("first");
  const Process second = TrainLarge("second", {"--wait-ms", "60000"});
  ASSERT_EQ(server->Wait(kLimit)->signal, SIGKILL);
  const Process next = Serve();
  ASSERT_TRUE(second->WaitForOutput("of the queue: job second needs", kLimit)) << second->Output();
  ExpectUndisturbed(first.get(), hash);
  ExpectDone(second.get(), hash);
}

TEST_F(SharedPool, JobsInKeptMemoryAreServedWhateverTheQuotasSayByThen) {
  const TemporaryDirectory elsewhere;
  const std::string path = elsewhere.path() + "/memserver.toml";
  const auto write = [&path](const char* guarantee) {
    std::ofstream(path) << "[[jobs.quota]]\nmatch = \"job:other\"\nguarantee = \"" << guarantee
                        << "\"\n";
  };
  write("1MiB");
  const Process server = Serve({"--config", path});
  const std::string hash = HashAlone();
  const Process first = TrainAndHold("first");
  write("100MiB");
  kill(ServerPid(), SIGKILL);
  ExpectUndisturbed(first.get(), hash);
  EXPECT_TRUE(server->WaitForOutput("the quotas do not fit the pool", kLimit)) << server->Output();
  KillDaemon(directory_.path());
  ChildProcess fresh(MemserverCommand(directory_.path(), {"--config", path}));
  EXPECT_EQ(fresh.Wait(kLimit)->exit_code, 2) << fresh.Output();
  EXPECT_NE(fresh.Output().find(path + ":3"), std::string::npos) << fresh.Output();
}

TEST_F(SharedPool, AQuotaOfTheConfigurationHoldsUntilAnOperatorChangesIt) {
  const TemporaryDirectory elsewhere;
  const std::string path = elsewhere.path() + "/memserver.toml";
  const std::string account = "user:" + std::to_string(geteuid());
  std::ofstream(path) << "[[jobs.quota]]\nmatch = \"" << account << "\"\nlimit = \""
                      << PoolBytesOf("first") << "\"\n";
  const Process server = Serve({"--config", path, "--pool", "16MiB"});
  const std::string hash = HashAlone();
  const Process first = TrainAndHold("first");
  const Process second = TrainLarge("second");
  EXPECT_EQ(second->Wait(kLimit)->exit_code, 5);
  EXPECT_NE(second->Output().find("TP2104"), std::string::npos) << second->Output();
  EXPECT_NE(second->Output().find(account + " may have 0 B (0 bytes) more"), std::string::npos)
      << second->Output();
  const Process third = TrainLarge("third", {"--wait-ms", "60000"});
  ASSERT_TRUE(third->WaitForOutput("waiting for room", kLimit)) << third->Output();
  Memctl({"job", "quota", "first", "--limit", "none", "--weight", "3"});
  const std::string job = Admin("/v1/jobs/first");
  EXPECT_NE(job.find("\"account\":\"job:first\""), std::string::npos) << job;
  EXPECT_EQ(NumberIn(job, "weight"), 3);
  ExpectDone(third.get(), hash);
  ExpectUndisturbed(first.get(), hash);
  EXPECT_TRUE(server->WaitForOutput("change by an admin", kLimit));
}

// --- shares ---

// Fetches the same chunk over and over, with so many requests ahead that the server never lacks
// one.
class Fetcher {
 public:
  static constexpr uint32_t kAhead = 500;

  Fetcher(const std::string& socket_dir, const std::string& name) {
    options_.socket_dir = socket_dir;
    options_.name = name;
    options_.chunks = 1;
    options_.chunk_elements = 1024 * 1024;
    thread_ = std::thread([this] { result_ = Run(); });
  }
  ~Fetcher() {
    stop_ = true;
    thread_.join();
    EXPECT_TRUE(result_.ok()) << result_.Format();
  }
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
  uint64_t bytes() const { return bytes_; }

 private:
  Status Run() {
    client::ClientOptions connect;
    connect.clock = RealClock();
    connect.socket_dir = options_.socket_dir;
    TP_ASSIGN_OR_RETURN(const auto client,
                        client::MemClient::Connect(connect, SpecOf(options_), 0));
    const client::Range range{0, 0, options_.chunk_elements, 0};
    TP_ASSIGN_OR_RETURN(const client::Ticket put, client->StartPutWeights(range));
    TP_RETURN_IF_ERROR(client->Wait(put).status());
    std::deque<client::Ticket> ahead;
    while (!stop_ || !ahead.empty()) {
      while (!stop_ && ahead.size() < kAhead) {
        TP_ASSIGN_OR_RETURN(const client::Ticket fetch, client->StartFetch(range, 0));
        ahead.push_back(fetch);
      }
      TP_RETURN_IF_ERROR(client->Wait(ahead.front()).status());
      ahead.pop_front();
      bytes_ += options_.chunk_elements * sizeof(float);
    }
    return client->Detach();
  }

  ThinOptions options_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> bytes_{0};
  Status result_;
  std::thread thread_;
};

// What two jobs have been copied, as the server counts it at one moment: what waits in the clients'
// rings, who may not get the CPU to take it, does not count.
struct Copied {
  double one = 0, other = 0;
};
Copied CopiedFor(const std::string& socket_dir, const std::string& one, const std::string& other) {
  const std::string metrics = AskAdmin(socket_dir, "/metrics");
  const auto bytes_of = [&](const std::string& job) {
    const std::string sample = "tidepool_rank_transfer_bytes_total{job_name=\"" + job +
                               "\",rank=\"0\",direction=\"host_to_device\"} ";
    const size_t at = metrics.find(sample);
    EXPECT_NE(at, std::string::npos) << metrics;
    return at == std::string::npos ? 0 : std::stod(metrics.substr(at + sample.size(), 40));
  };
  return {bytes_of(one), bytes_of(other)};
}

// What two fetchers get while both have requests waiting, until they have had `bytes` together.
double RatioOver(const std::string& socket_dir, const std::string& one, const std::string& other,
                 uint64_t bytes) {
  SteadyClock clock;
  const int64_t end = clock.NowNs() + 60 * kNsPerSecond;
  const Copied before = CopiedFor(socket_dir, one, other);
  while (true) {
    const Copied now = CopiedFor(socket_dir, one, other);
    const double to_one = now.one - before.one, to_other = now.other - before.other;
    if (to_one + to_other >= static_cast<double>(bytes) || clock.NowNs() > end)
      return to_one / to_other;
    clock.SleepNs(20 * kNsPerMs);
  }
}

void WaitForBytes(const Fetcher& fetcher) {
  SteadyClock clock;
  const int64_t end = clock.NowNs() + 30 * kNsPerSecond;
  while (fetcher.bytes() == 0 && clock.NowNs() < end) clock.SleepNs(kNsPerMs);
  ASSERT_GT(fetcher.bytes(), 0u);
}

#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kSharedBytes = kGiB;
#else
constexpr uint64_t kSharedBytes = 8 * kGiB;
#endif

TEST_F(SharedPool, CopiesGoByWeightAndALowPriorityStillMoves) {
  const Process server = Serve({"--copy-threads", "0", "--pool", "40MiB"});
  const Fetcher one(directory_.path(), "one"), two(directory_.path(), "two");
  WaitForBytes(one);
  WaitForBytes(two);
  Memctl({"job", "quota", "two", "--weight", "2"});
  EXPECT_NEAR(RatioOver(directory_.path(), "two", "one", kSharedBytes), 2, 0.1);
  Memctl({"job", "quota", "one", "--priority", "low"});
  const double ratio = RatioOver(directory_.path(), "two", "one", kSharedBytes);
  EXPECT_GT(ratio, 10);
  EXPECT_LT(ratio, 25) << "1/17 of all is promised";
}

}  // namespace shared_pool_test
}  // namespace tidepool::testing
