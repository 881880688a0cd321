#include "base/event_queue.h"

#include <poll.h>

#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tidepool {
namespace event_queue_test {

bool Readable(int fd, int timeout_ms) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, timeout_ms) == 1;
}

TEST(EventQueue, KeepsTheOrderAndWakesItsReader) {
  EventQueue<int> queue;
  EXPECT_FALSE(Readable(queue.event_fd(), 0));
  queue.Push(1);
  queue.Push(2);
  EXPECT_TRUE(Readable(queue.event_fd(), 0));
  queue.ClearEvent();
  std::vector<int> items;
  EXPECT_TRUE(queue.TakeAll(&items));
  EXPECT_EQ(items, (std::vector<int>{1, 2}));
  EXPECT_FALSE(Readable(queue.event_fd(), 0));
}

TEST(EventQueue, TakeAllOfNothingClearsTheOldItems) {
  EventQueue<int> queue;
  std::vector<int> items = {9};
  EXPECT_FALSE(queue.TakeAll(&items));
  EXPECT_TRUE(items.empty());
}

TEST(EventQueue, CarriesTypesThatOnlyMove) {
  EventQueue<std::unique_ptr<int>> queue;
  queue.Push(std::make_unique<int>(4));
  std::vector<std::unique_ptr<int>> items;
  ASSERT_TRUE(queue.TakeAll(&items));
  EXPECT_EQ(*items.at(0), 4);
}

TEST(EventQueue, NothingIsLostBetweenTwoThreads) {
  constexpr int kItems = 20'000;
  EventQueue<int> queue;
  std::thread producer([&queue] {
    for (int i = 0; i < kItems; ++i) queue.Push(i);
  });
  std::vector<int> all, items;
  while (all.size() < kItems && Readable(queue.event_fd(), 10'000)) {
    queue.ClearEvent();
    queue.TakeAll(&items);
    all.insert(all.end(), items.begin(), items.end());
  }
  producer.join();
  ASSERT_EQ(all.size(), size_t{kItems});
  for (int i = 0; i < kItems; ++i) ASSERT_EQ(all[static_cast<size_t>(i)], i);
}

}  // namespace event_queue_test
}  // namespace tidepool
