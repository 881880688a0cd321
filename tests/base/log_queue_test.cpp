#include "base/log_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace tidepool {
namespace log_queue_test {

using ::testing::EndsWith;

constexpr int64_t kLong = 60 * kNsPerSecond;

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    read_end = UniqueFd(ends[0]);
    write_end = UniqueFd(ends[1]);
  }
  // Until a text has come that ends so.
  std::string ReadTo(const std::string& end) const {
    std::string text;
    for (std::array<char, 65536> piece; !text.ends_with(end);) {
      const ssize_t count = read(read_end.get(), piece.data(), piece.size());
      if (count <= 0) break;
      text.append(piece.data(), static_cast<size_t>(count));
    }
    return text;
  }
  UniqueFd read_end, write_end;
};

// The writer's thread uses its descriptor until the process ends, so these are never closed.
Pipe& LastingPipe() {
  static std::vector<std::unique_ptr<Pipe>> pipes;
  return *pipes.emplace_back(std::make_unique<Pipe>());
}

std::string AboutDropped(uint64_t count) {
  return "dropped " + std::to_string(count) + "\n";
}

TEST(LogQueue, LinesComeInTheirOrder) {
  const Pipe& pipe = LastingPipe();
  LogQueue queue(pipe.write_end.get(), AboutDropped);
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    queue.Push(line);
    expected += line;
  }
  EXPECT_TRUE(queue.Flush(kLong));
  EXPECT_EQ(pipe.ReadTo("line 99\n"), expected);
}

TEST(LogQueue, LinesLongerThanAPipeTakesAtOnceComeWhole) {
  const Pipe& pipe = LastingPipe();
  LogQueue queue(pipe.write_end.get(), AboutDropped);
  const std::string line = std::string(5 * PIPE_BUF, 'x') + "\n";
  queue.Push(line);
  EXPECT_EQ(pipe.ReadTo("\n"), line);
}

TEST(LogQueue, NobodyWaitsForAReaderThatTakesNothingAndItIsToldWhatItMissed) {
  const Pipe& pipe = LastingPipe();
  LogQueue queue(pipe.write_end.get(), AboutDropped);
  const std::string line(1023, 'y');
  constexpr int kLines = 4 * LogQueue::kBytesMax / 1024;
  // Without a bound, or a thread of its own, this never ends, or takes it all.
  for (int i = 0; i < kLines; ++i) queue.Push(line + "\n");
  EXPECT_FALSE(queue.Flush(kNsPerMs));

  // The reader comes back. What is dropped is told behind the lines that were there before.
  std::string text;
  std::array<char, 65536> piece{};
  while (text.find("dropped ") == std::string::npos) {
    const ssize_t count = read(pipe.read_end.get(), piece.data(), piece.size());
    ASSERT_GT(count, 0);
    text.append(piece.data(), static_cast<size_t>(count));
  }
  const size_t told = text.find("dropped ");
  const uint64_t dropped = std::stoull(text.substr(told + 8));
  EXPECT_EQ(told / 1024 + dropped, static_cast<uint64_t>(kLines))
      << "each line was written or counted";
  EXPECT_LE(told, LogQueue::kBytesMax + 128 * 1024) << "the queue, and what a pipe holds";
  queue.Push("after\n");
  EXPECT_TRUE(queue.Flush(kLong));
  EXPECT_THAT(pipe.ReadTo("after\n"), EndsWith("after\n"));
}

TEST(LogQueue, ATextForAPersonTakesNoLongerThanItIsGiven) {
  const Pipe pipe;
  EXPECT_TRUE(WriteWithin(pipe.write_end.get(), "short\n", kLong));
  EXPECT_EQ(pipe.ReadTo("\n"), "short\n");
  EXPECT_FALSE(WriteWithin(pipe.write_end.get(), std::string(size_t{4} << 20, 'z'), kNsPerMs));
  EXPECT_FALSE(WriteWithin(-1, "nowhere", kNsPerMs));
}

TEST(LogQueue, ManyThreadsLoseNoLine) {
  const Pipe& pipe = LastingPipe();
  LogQueue queue(pipe.write_end.get(), AboutDropped);
  constexpr int kThreads = 4, kLines = 500;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&queue, i] {
      for (int line = 0; line < kLines; ++line)
        queue.Push(std::string(1, static_cast<char>('a' + i)) + "\n");
    });
  }
  std::string text;
  std::array<char, 4096> piece{};
  while (text.size() < 2 * kThreads * kLines) {
    const ssize_t count = read(pipe.read_end.get(), piece.data(), piece.size());
    ASSERT_GT(count, 0);
    text.append(piece.data(), static_cast<size_t>(count));
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i)
    EXPECT_EQ(std::count(text.begin(), text.end(), 'a' + i), kLines);
}

}  // namespace log_queue_test
}  // namespace tidepool
