// The small parts of traffic/: ring, wait list, copy lane.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "memserver/traffic/copy_lane.h"
#include "memserver/traffic/fixed_ring.h"
#include "memserver/traffic/wait_list.h"
#include "tests/fakes/slow_device.h"

namespace tidepool::memserver {
namespace traffic_test {

shm::Request Numbered(uint64_t counter, shm::Op op = shm::Op::kFetch) {
  shm::Request request{};
  request.counter = counter;
  request.op = static_cast<uint32_t>(op);
  return request;
}

TEST(FixedRing, KeepsOrderOverItsEnd) {
  FixedRing<int> ring(3);
  for (int i = 0; i < 10; ++i) {
    ring.Push(i);
    ring.Push(100 + i);
    EXPECT_EQ(ring.size(), 2u);
    EXPECT_EQ(ring.at(1), 100 + i);
    EXPECT_EQ(ring.Front(), i);
    ring.Pop();
    ring.Pop();
    EXPECT_TRUE(ring.empty());
  }
}

TEST(FixedRingDeathTest, APushBeyondItsBoundStopsTheProcess) {
  FixedRing<int> ring(1);
  ring.Push(1);
  EXPECT_DEATH(ring.Push(2), "counted before");
}

// Retries and returns the counters that were asked, in order.
std::vector<uint64_t> Asked(WaitList* list, const std::vector<uint64_t>& stay) {
  std::vector<uint64_t> asked;
  list->Retry([&](const shm::Request& request) {
    asked.push_back(request.counter);
    return std::find(stay.begin(), stay.end(), request.counter) != stay.end();
  });
  return asked;
}

TEST(WaitList, KeepsWhatStillWaitsInOrder) {
  WaitList list(8);
  for (uint64_t counter = 1; counter <= 4; ++counter) list.Add(Numbered(counter));
  EXPECT_EQ(Asked(&list, {2, 4}), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(list.size(), 2u);
  EXPECT_EQ(Asked(&list, {}), (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(list.size(), 0u);
}

TEST(WaitList, NoGradientOvertakesAnEarlierOne) {
  WaitList list(8);
  list.Add(Numbered(1, shm::Op::kSubmitGradient));
  list.Add(Numbered(2, shm::Op::kSubmitGradient));
  list.Add(Numbered(3));
  EXPECT_EQ(Asked(&list, {1}), (std::vector<uint64_t>{1, 3}));
  EXPECT_TRUE(list.IsBehind(Numbered(4, shm::Op::kSubmitGradient)));
  EXPECT_EQ(Asked(&list, {}), (std::vector<uint64_t>{1, 2}));
  EXPECT_FALSE(list.IsBehind(Numbered(4, shm::Op::kSubmitGradient)));
}

TEST(CopyLane, EndsCopiesInOrderAndOnlyWhenTheyHavePassed) {
  SlowDevice device;
  CopyLane lane(std::move(device.OpenStream()).value(), 4);
  const std::string from = "tidepool";
  std::string to(8, '.');
  lane.Start({Numbered(1), 4, 0, false}, to.data(), from.data());
  lane.Start({Numbered(2), 4, 0, false}, to.data() + 4, from.data() + 4);
  Copy copy;
  EXPECT_FALSE(lane.TakeDone(&copy));
  device.Move(0, 3);
  EXPECT_FALSE(lane.TakeDone(&copy));
  device.Move(0, 1);
  ASSERT_TRUE(lane.TakeDone(&copy));
  EXPECT_EQ(copy.request.counter, 1u);
  EXPECT_EQ(to, "tide....");
  EXPECT_EQ(lane.size(), 1u);
  EXPECT_EQ(lane.at(0).request.counter, 2u);
}

}  // namespace traffic_test
}  // namespace tidepool::memserver
