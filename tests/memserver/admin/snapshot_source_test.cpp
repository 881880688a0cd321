#include "memserver/admin/snapshot_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "memserver/admin/admin_api.h"
#include "tests/memserver/admin/admin_fixture.h"

namespace tidepool::memserver {
namespace snapshot_source_test {

using ::testing::HasSubstr;

TEST(SnapshotSource, ManyReadersCostTheLoopOneSnapshot) {
  FakeLoop loop;
  AdminApi api(Facts(), &loop.source, loop.mail());
  const int64_t begin = loop.clock.NowNs();
  for (int i = 0; i < 200; ++i) ASSERT_EQ(api.Answer({"GET", "/v1/jobs", "", kAdmin}).status, 200u);
  const int64_t windows = (loop.clock.NowNs() - begin) / (SnapshotSource::kAgeMaxMs * kNsPerMs);
  EXPECT_LE(loop.asked, windows + 2);
}

TEST(SnapshotSource, ALoopThatNeverAnswersIsWaitedForOnce) {
  FakeLoop loop;
  loop.stuck = true;
  AdminApi api(Facts(), &loop.source, loop.mail());
  EXPECT_EQ(api.Answer({"GET", "/livez", "", kAdmin}).status, 200u)
      << "alive, although nothing has been heard of the loop yet";
  const int64_t begin = loop.clock.NowNs();
  EXPECT_EQ(api.Answer({"GET", "/v1/status", "", kAdmin}).status, 503u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(api.Answer({"GET", "/v1/jobs", "", kAdmin}).status, 503u);
  EXPECT_LT(loop.clock.NowNs() - begin, 2 * SnapshotSource::kWaitMs * kNsPerMs);
  const AdminAnswer ready = api.Answer({"GET", "/readyz", "", kAdmin});
  EXPECT_EQ(ready.status, 503u);
  EXPECT_THAT(ready.body, HasSubstr("the serve loop has not answered for"));
  EXPECT_THAT(api.Answer({"GET", "/livez", "", kAdmin}).body, HasSubstr("\"silent\":true"));
}

TEST(SnapshotSource, ALoopThatFallsSilentLeavesTheLastSnapshotWithItsAge) {
  FakeLoop loop;
  AdminApi api(Facts(), &loop.source, loop.mail());
  ASSERT_EQ(api.Answer({"GET", "/v1/status", "", kAdmin}).status, 200u);
  loop.stuck = true;
  SteadyClock().SleepNs(2 * SnapshotSource::kAgeMaxMs * kNsPerMs);
  const AdminAnswer status = api.Answer({"GET", "/v1/status", "", kAdmin});
  EXPECT_EQ(status.status, 200u);
  EXPECT_THAT(status.body, HasSubstr("\"snapshot_age_seconds\":1."));
  EXPECT_EQ(api.Answer({"GET", "/readyz", "", kAdmin}).status, 503u);
  loop.stuck = false;
  for (int i = 0; i < 500 && api.Answer({"GET", "/readyz", "", kAdmin}).status != 200u; ++i)
    SteadyClock().SleepNs(10 * kNsPerMs);
  EXPECT_EQ(api.Answer({"GET", "/readyz", "", kAdmin}).status, 200u) << "it answers again";
}

TEST(SnapshotSource, AnAnswerToAQuestionOfLongAgoIsNotTakenForNew) {
  SteadyClock clock;
  EventQueue<ControlEvent> to_loop;
  SnapshotSource source(&to_loop, &clock);

  // The watchdog's question: the loop answers it, and control hands the answer over much later.
  source.Look();
  clock.SleepNs(2 * SnapshotSource::kAgeMaxMs * kNsPerMs);
  std::atomic<bool> stop{false};
  std::thread loop([&] {
    std::vector<ControlEvent> questions;
    for (uint64_t answers = 0; !stop;) {
      if (!to_loop.TakeAll(&questions)) continue;
      Snapshot snapshot;
      snapshot.turns = ++answers;
      source.Publish(std::make_shared<const Snapshot>(snapshot));
    }
  });

  const SnapshotLook look = source.Get();
  stop = true;
  loop.join();
  ASSERT_NE(look.snapshot, nullptr);
  EXPECT_EQ(look.snapshot->turns, 2u);
}

}  // namespace snapshot_source_test
}  // namespace tidepool::memserver
