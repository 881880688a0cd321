// How long the ranks of a run wait for each other.
#include <gtest/gtest.h>

#include "base/units.h"
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

TEST(SessionWaits, ASharedServersPoolDoesNotMatter) {
  EXPECT_LT(TimeoutMs(false, ""), 15 * 60 * 1000);
}

}  // namespace session_waits_test
}  // namespace tidepool::trainer
