// InParts: every element once, whatever the numbers are, and parts that are worth a thread.
#include "trainer/threads/in_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tidepool::trainer {
namespace in_parts_test {

std::vector<std::pair<uint64_t, uint64_t>> PartsOf(uint64_t count, uint64_t least,
                                                   uint32_t threads) {
  std::mutex mutex;
  std::vector<std::pair<uint64_t, uint64_t>> parts;
  InParts(count, least, threads, [&](uint64_t begin, uint64_t end) {
    const std::lock_guard lock(mutex);
    parts.emplace_back(begin, end);
  });
  std::sort(parts.begin(), parts.end());
  return parts;
}

TEST(InParts, CoversEveryElementOnce) {
  for (const uint64_t count : {1, 2, 7, 64, 65, 1000}) {
    for (const uint64_t least : {1, 3, 64}) {
      for (const uint32_t threads : {0, 1, 2, 16}) {
        const auto parts = PartsOf(count, least, threads);
        EXPECT_LE(parts.size(), std::max(threads, 1U));
        uint64_t next = 0;
        for (const auto& [begin, end] : parts) {
          EXPECT_EQ(begin, next);
          EXPECT_TRUE(end - begin >= least || end == count) << begin << " to " << end;
          next = end;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
  EXPECT_TRUE(PartsOf(0, 1, 4).empty());
}

TEST(InParts, UsesSeveralThreads) {
  std::mutex mutex;
  std::vector<std::thread::id> seen;
  InParts(4, 1, 4, [&](uint64_t, uint64_t) {
    const std::lock_guard lock(mutex);
    seen.push_back(std::this_thread::get_id());
  });
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()) - seen.begin(), 4);
}

}  // namespace in_parts_test
}  // namespace tidepool::trainer
