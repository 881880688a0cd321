#include "base/system/poll_left.h"

#include <unistd.h>

#include <array>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace tidepool {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(pipe(ends.data()), 0);
    read_end = UniqueFd(ends[0]);
    write_end = UniqueFd(ends[1]);
  }
  UniqueFd read_end, write_end;
};

TEST(PollLeft, CountsDownOverSeveralCalls) {
  const Pipe empty;
  pollfd entry{empty.read_end.get(), POLLIN, 0};
  int64_t left_ns = 3 * kNsPerMs;
  EXPECT_EQ(PollLeft(&entry, &left_ns), 0);
  EXPECT_EQ(left_ns, 0);
  EXPECT_EQ(PollLeft(&entry, &left_ns), 0) << "nothing is left to wait for";
}

TEST(PollLeft, LeavesWhatItDidNotWaitFor) {
  const Pipe full;
  ASSERT_EQ(write(full.write_end.get(), "x", 1), 1);
  pollfd entry{full.read_end.get(), POLLIN, 0};
  int64_t left_ns = 3600 * kNsPerSecond;
  EXPECT_EQ(PollLeft(&entry, &left_ns), 1);
  EXPECT_GT(left_ns, 3500 * kNsPerSecond);
  EXPECT_LE(left_ns, 3600 * kNsPerSecond);

  left_ns = 0;
  EXPECT_EQ(PollLeft(&entry, &left_ns), 1) << "ready, though no time is left";
}

TEST(PollLeft, WithoutALimitTheLimitStays) {
  const Pipe full;
  ASSERT_EQ(write(full.write_end.get(), "x", 1), 1);
  pollfd entry{full.read_end.get(), POLLIN, 0};
  int64_t left_ns = INT64_MAX;
  EXPECT_EQ(PollLeft(&entry, &left_ns), 1);
  EXPECT_EQ(left_ns, INT64_MAX);
}

}  // namespace
}  // namespace tidepool
