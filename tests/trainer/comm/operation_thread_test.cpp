// OperationThread: order, buffers that are lent, and what becomes of operations behind one that
// failed.
#include "trainer/comm/operation_thread.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"

namespace tidepool::trainer {
namespace operation_thread_test {

constexpr int kWaitMs = 60'000;

// What the thread did, as the test sees it when an operation has ended.
struct Notes {
  std::mutex mutex;
  std::vector<std::pair<uint64_t, std::byte*>> begun;
  std::vector<std::byte*> finished;
  std::vector<std::thread::id> threads;
};

// One piece each; it ends when the test says so, or at once.
ThreadOperation Note(Notes* notes, uint64_t part_bytes, OperationThread* ends_at_once = nullptr) {
  return {.part_bytes = part_bytes,
          .begin =
              [notes, ends_at_once](uint64_t number, std::byte* parts) {
                const std::lock_guard lock(notes->mutex);
                notes->begun.emplace_back(number, parts);
                if (ends_at_once != nullptr) ends_at_once->PieceEnded(number, {});
                return ThreadOperation::Begun{.pieces = 1};
              },
          .finish =
              [notes](std::byte* parts) {
                const std::lock_guard lock(notes->mutex);
                notes->finished.push_back(parts);
                notes->threads.push_back(std::this_thread::get_id());
              }};
}

void AwaitEnd(OperationThread* thread, uint64_t number) {
  while (!thread->Ended(number)) ASSERT_TRUE(thread->AwaitChange(kWaitMs));
}

std::vector<std::pair<uint64_t, std::byte*>> Begun(Notes* notes) {
  const std::lock_guard lock(notes->mutex);
  return notes->begun;
}

void AwaitBegun(Notes* notes, size_t count) {
  for (int turns = 0; Begun(notes).size() < count && turns < kWaitMs; ++turns)
    SteadyClock().SleepNs(kNsPerMs);
  ASSERT_EQ(Begun(notes).size(), count);
}

TEST(OperationThread, LendsSoManyBuffersAndNoMore) {
  Notes notes;
  OperationThread thread;
  for (const uint64_t bytes : {100, 300, 300, 200, 50}) thread.Start(Note(&notes, bytes));
  for (uint64_t number = 1; number <= 5; ++number) {
    AwaitBegun(&notes, std::min<size_t>(number + kPartsAtOnce - 1, 5));
    thread.PieceEnded(number, {});
    AwaitEnd(&thread, number);
    EXPECT_TRUE(thread.ResultOf(number).ok());
    EXPECT_LE(thread.part_bytes(), kPartsAtOnce * 300U);
  }
  EXPECT_EQ(thread.part_bytes(), kPartsAtOnce * 300U) << "each is as large as the largest block";
  for (size_t i = 0; i + 1 < 5; ++i)
    EXPECT_NE(notes.begun[i].second, notes.begun[i + 1].second) << "both were in work";
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(notes.begun[i].first, i + 1);
    EXPECT_EQ(notes.finished[i], notes.begun[i].second);
  }
}

// A question first: its piece has the operation's number too.
TEST(OperationThread, BeginsWhatWasJudgedWellAndNothingBehindWhatWasNot) {
  Notes notes;
  OperationThread thread;
  std::atomic<int> asked{0}, judged{0};
  const auto asking = [&](Status verdict) {
    ThreadOperation operation = Note(&notes, 100);
    operation.ask = [&](uint64_t) {
      ++asked;
      return ThreadOperation::Begun{.pieces = 1};
    };
    operation.judge = [&, verdict] {
      ++judged;
      return verdict;
    };
    return operation;
  };
  thread.Start(asking({}));
  thread.Start(asking(Status(ErrorId::kCollectiveFailed, "rank 1 is elsewhere")));
  thread.Start(Note(&notes, 100));
  const auto await_asked = [&](int count) {
    for (int turns = 0; asked < count && turns < kWaitMs; ++turns) SteadyClock().SleepNs(kNsPerMs);
    ASSERT_EQ(asked, count);
  };
  await_asked(1);
  thread.PieceEnded(1, {});
  AwaitBegun(&notes, 1);
  EXPECT_EQ(judged, 1);
  thread.PieceEnded(1, {});
  AwaitEnd(&thread, 1);
  EXPECT_TRUE(thread.ResultOf(1).ok());
  await_asked(2);
  thread.PieceEnded(2, {});
  AwaitEnd(&thread, 3);
  EXPECT_EQ(thread.ResultOf(2).what(), "rank 1 is elsewhere");
  EXPECT_FALSE(thread.ResultOf(3).ok());
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(Begun(&notes).size(), 1U);
}

// The order of collectives is that of the other ranks, whose buffers may be free.
TEST(OperationThread, WhatNeedsNoBufferWaitsBehindWhatDoes) {
  Notes notes;
  OperationThread thread;
  for (uint32_t i = 0; i <= kPartsAtOnce; ++i) thread.Start(Note(&notes, 8));
  const uint64_t last = thread.Start(Note(&notes, 0));
  AwaitBegun(&notes, kPartsAtOnce);
  thread.PieceEnded(1, {});
  AwaitBegun(&notes, kPartsAtOnce + 2);
  EXPECT_EQ(Begun(&notes).back(), (std::pair<uint64_t, std::byte*>{last, nullptr}));
  for (uint64_t number = 2; number <= last; ++number) thread.PieceEnded(number, {});
  AwaitEnd(&thread, last);
}

TEST(OperationThread, OperationsEndInOrderAndFinishOnTheThread) {
  Notes notes;
  OperationThread thread;
  thread.Start(Note(&notes, 8));
  const uint64_t last = thread.Start(Note(&notes, 0));
  AwaitBegun(&notes, 2);
  thread.PieceEnded(2, {});
  EXPECT_FALSE(thread.AwaitChange(0));
  EXPECT_FALSE(thread.Ended(1) || thread.Ended(2));
  thread.PieceEnded(1, {});
  AwaitEnd(&thread, last);
  ASSERT_EQ(notes.finished, (std::vector<std::byte*>{notes.begun[0].second, nullptr}));
  for (const std::thread::id id : notes.threads) EXPECT_NE(id, std::this_thread::get_id());
}

// What is in work still uses memory of the caller; what was not begun does not.
TEST(OperationThread, BehindAFailureAllFailAndNothingIsBegun) {
  Notes notes;
  OperationThread thread;
  for (int i = 0; i < 4; ++i) thread.Start(Note(&notes, 8));
  AwaitBegun(&notes, kPartsAtOnce);
  thread.PieceEnded(1, Status(ErrorId::kCollectiveFailed, "a peer has left"));
  AwaitEnd(&thread, 1);
  EXPECT_FALSE(thread.Ended(2)) << "it is in work";
  thread.PieceEnded(2, {});
  AwaitEnd(&thread, 4);
  AwaitEnd(&thread, thread.Start(Note(&notes, 0)));
  for (uint64_t number = 1; number <= 5; ++number)
    EXPECT_EQ(thread.ResultOf(number).id(), ErrorId::kCollectiveFailed) << number;
  EXPECT_EQ(notes.begun.size(), kPartsAtOnce);
  EXPECT_TRUE(notes.finished.empty());
}

TEST(OperationThread, ManyThatEndAtOnceLeaveTwoBuffers) {
  Notes notes;
  OperationThread thread;
  for (uint64_t i = 1; i <= 1000; ++i) thread.Start(Note(&notes, i % 7 * 10, &thread));
  AwaitEnd(&thread, 1000);
  EXPECT_TRUE(thread.ResultOf(1000).ok());
  EXPECT_EQ(notes.finished.size(), 1000U);
  EXPECT_LE(thread.part_bytes(), kPartsAtOnce * 60U);
}

}  // namespace operation_thread_test
}  // namespace tidepool::trainer
