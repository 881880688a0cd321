// How long the ranks of a run wait for each other.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/units.h"
#include "client/mem_client.h"
#include "memserver/server.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {
namespace session_waits_test {

SessionTask TaskOf(bool standalone, const std::string& pool) {
  static SteadyClock clock;
  SessionTask task;
  task.clock = &clock;
  task.server.standalone = standalone;
  task.server.pool = pool;
  task.spec.name = "j";
  return task;
}

client::JobSpec OneChunk() {
  client::JobSpec spec;
  spec.name = "j";
  spec.rcache_bytes = 4096;
  spec.data_groups = {{1}};
  spec.chunks = {{64, 0}};
  spec.parameter_groups = {{}};
  spec.parameters = {{"w", {64}, 0, 0, 0, 64}};
  return spec;
}

int64_t TimeoutMs(bool standalone, const std::string& pool) {
  RankPlace place;
  place.world = place.local_world = 2;
  const auto session = RunSession::Make(place, TaskOf(standalone, pool));
  EXPECT_TRUE(session.ok()) << session.status().Format();
  return session.value()->CollectiveTimeoutMs();
}

// Rank 0 starts the server, which touches its whole pool; the others wait in a collective.
TEST(SessionWaits, ThePrivateServersTimeIsPartOfTheGroups) {
  for (const uint64_t gib : {1, 135, 400, 2000}) {
    SCOPED_TRACE(gib);
    StandaloneOptions server;
    server.pool_bytes = gib * kGiB;
    EXPECT_GE(TimeoutMs(true, std::to_string(gib) + "GiB"),
              ReadyTimeoutNs(server) / kNsPerMs + kCollectiveTimeoutMs);
  }
}

// A launcher of another release, say: the run goes on without knowing who lives.
TEST(SessionWaits, ARollThatCannotBeReadIsAsNone) {
  RankPlace place;
  place.world = place.local_world = 2;
  place.roll = "/dev/null";
  const auto session = RunSession::Make(place, TaskOf(false, ""));
  EXPECT_TRUE(session.ok()) << session.status().Format();
}

// A rank of the run before does not leave: the wait ends by the flag that bounds it, and says so.
TEST(SessionWaits, ASeatThatStaysTakenIsWaitedForByTheRejoinTimeout) {
  std::string directory = ::testing::TempDir() + "/tidepool-slot-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  SteadyClock clock;
  memserver::KeptHolder nobody{memserver::KeeperChoice::kNone, {}};
  memserver::ServerOptions options;
  options.settings.socket_dir = directory;
  options.pool_bytes = options.rcache_limit = 16 * kMiB;
  auto server = memserver::Server::Start(options, &nobody, &clock);
  ASSERT_TRUE(server.ok()) << server.status().Format();

  SessionTask task = TaskOf(false, "");
  task.server.socket_dir = directory;
  task.spec = OneChunk();
  client::ClientOptions client;
  client.clock = &clock;
  client.socket_dir = directory;
  auto former = client::MemClient::Connect(client, task.spec, 0);
  ASSERT_TRUE(former.ok()) << former.status().Format();

  task.resumes = true;
  task.job.rejoin_timeout = "300ms";
  task.server.timeout = "1h";
  std::string said;
  task.say = [&said](const std::string& line) { said += line; };
  const int64_t before_ns = clock.NowNs();
  const auto session = RunSession::Open(RankPlace{}, task);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().id(), ErrorId::kRankTaken);
  EXPECT_NE(session.status().fix().find("--rejoin-timeout"), std::string::npos)
      << session.status().Format();
  EXPECT_GE(clock.NowNs() - before_ns, 300 * kNsPerMs);

  server->reset();
  std::filesystem::remove_all(directory);
}

TEST(SessionWaits, ASharedServersPoolDoesNotMatter) {
  EXPECT_LT(TimeoutMs(false, ""), 15 * 60 * 1000);
}

}  // namespace session_waits_test
}  // namespace tidepool::trainer
