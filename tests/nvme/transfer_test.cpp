// Transfers: cut, gone on with, repeated, and ended with the error.
#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "base/units.h"
#include "nvme/transfer.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/sim_disk.h"

namespace tidepool::nvme {
namespace transfer_test {

// Answers as the test says, in order of submission: bytes or an errno; whole when nothing is said.
class ToldQueue final : public IoQueue {
 public:
  std::deque<int32_t> answers;
  std::vector<IoRequest> seen;
  std::deque<IoRequest> out;

  void Submit(const IoRequest& request) override {
    TP_CHECK(out.size() < depth(), "depth");
    out.push_back(request);
    seen.push_back(request);
  }
  void Flush() override {}
  std::optional<IoDone> Reap() override {
    if (out.empty()) return std::nullopt;
    const IoRequest request = out.front();
    out.pop_front();
    int32_t value = static_cast<int32_t>(request.bytes);
    if (!answers.empty()) {
      value = answers.front();
      answers.pop_front();
    }
    return std::optional<IoDone>(IoDone{request.tag, IoResult(value)});
  }
  uint32_t depth() const override { return 2; }
  int event_fd() const override { return -1; }
  void ClearEvent() override {}
  std::string Name() const override { return "told"; }
};

class TransferTest : public ::testing::Test {
 protected:
  TransferDone RunToEnd() {
    TransferDone done;
    for (int i = 0; i < 10'000; ++i) {
      transfers_.Progress();
      if (transfers_.Next(&done)) return done;
      if (queue_.out.empty() && transfers_.next_retry_ns() != INT64_MAX) {
        pauses_.push_back(transfers_.next_retry_ns() - clock_.NowNs());
        clock_.Advance(pauses_.back());
      }
    }
    ADD_FAILURE() << "the transfer did not end";
    return done;
  }
  TransferDone Run(IoKind kind, uint64_t bytes) {
    transfers_.Start({kind, 3, 16 * kPageBytes, memory_.data(), bytes, 42});
    return RunToEnd();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(16 * kPageBytes);
  FakeClock clock_;
  ToldQueue queue_;
  TransferQueue transfers_{
      &queue_, &clock_, {.transfers_max = 4, .block_bytes = 4 * kPageBytes, .files = 4}};
  std::vector<int64_t> pauses_;
};

TEST_F(TransferTest, IsCutIntoBlocks) {
  const TransferDone done = Run(IoKind::kRead, 10 * kPageBytes);
  EXPECT_EQ(done.error, 0);
  EXPECT_EQ(done.tag, 42u);
  ASSERT_EQ(queue_.seen.size(), 3u);
  EXPECT_EQ(queue_.seen[2].offset, 24 * kPageBytes);
  EXPECT_EQ(queue_.seen[2].bytes, 2 * kPageBytes);
  EXPECT_EQ(queue_.seen[2].data, memory_.data() + 8 * kPageBytes);
  EXPECT_EQ(transfers_.bytes_read(), 10 * kPageBytes);
}

TEST_F(TransferTest, ASmallRestGoesWithTheBlockBefore) {
  TransferQueue large(&queue_, &clock_,
                      {.transfers_max = 4, .block_bytes = 16 * kPageBytes, .files = 4});
  large.Start({IoKind::kRead, 3, 0, memory_.data(), 33 * kPageBytes, 1});
  large.Start({IoKind::kRead, 3, 64 * kPageBytes, memory_.data(), 18 * kPageBytes, 2});
  TransferDone done;
  for (int i = 0; i < 4; ++i) large.Progress();
  ASSERT_EQ(queue_.seen.size(), 4u);
  EXPECT_EQ(queue_.seen[0].bytes, 16 * kPageBytes);
  EXPECT_EQ(queue_.seen[1].bytes, 17 * kPageBytes);
  EXPECT_EQ(queue_.seen[2].bytes, 16 * kPageBytes);
  EXPECT_EQ(queue_.seen[3].bytes, 2 * kPageBytes) << "an eighth of a block is a request of its own";
  EXPECT_TRUE(large.Next(&done) && done.error == 0);
  EXPECT_TRUE(large.Next(&done) && done.error == 0);
  EXPECT_EQ(large.bytes_read(), 51 * kPageBytes);
}

TEST_F(TransferTest, GoesOnAfterShortAnswersAtAPage) {
  queue_.answers = {static_cast<int32_t>(kPageBytes + 512)};
  EXPECT_EQ(Run(IoKind::kWrite, 4 * kPageBytes).error, 0);
  ASSERT_EQ(queue_.seen.size(), 2u);
  EXPECT_EQ(queue_.seen[1].offset, 17 * kPageBytes);
  EXPECT_EQ(queue_.seen[1].bytes, 3 * kPageBytes);
}

TEST_F(TransferTest, AnAnswerOfLessThanAPageIsAskedForAgain) {
  queue_.answers = {512, 0};
  EXPECT_EQ(Run(IoKind::kWrite, kPageBytes).error, 0);
  EXPECT_EQ(queue_.seen.size(), 3u);
}

TEST_F(TransferTest, EagainAndEintrAreRepeated) {
  queue_.answers = {-EAGAIN, -EINTR, -EAGAIN};
  const TransferDone done = Run(IoKind::kRead, kPageBytes);
  EXPECT_EQ(done.error, 0);
  EXPECT_EQ(done.repetitions, 0u);
  EXPECT_EQ(queue_.seen.size(), 4u);
}

TEST_F(TransferTest, EagainForEverEnds) {
  queue_.answers.assign(2000, -EAGAIN);
  EXPECT_EQ(Run(IoKind::kRead, kPageBytes).error, EAGAIN);
}

TEST_F(TransferTest, ErrorsAreRepeatedWithGrowingPausesThenNamed) {
  queue_.answers = {-EIO, -EIO, -EIO};
  TransferDone done = Run(IoKind::kRead, kPageBytes);
  EXPECT_EQ(done.error, 0);
  EXPECT_EQ(done.repetitions, 3u);
  EXPECT_EQ(pauses_, (std::vector<int64_t>{kNsPerMs, 10 * kNsPerMs, 100 * kNsPerMs}));
  queue_.answers = {static_cast<int32_t>(4 * kPageBytes), -EIO, -EIO, -EIO, -EIO};
  done = Run(IoKind::kWrite, 8 * kPageBytes);
  EXPECT_EQ(done.error, EIO);
  EXPECT_EQ(done.offset, 20 * kPageBytes);
}

TEST_F(TransferTest, EndOfFileIsAnErrorAtOnce) {
  queue_.answers = {0};
  EXPECT_EQ(Run(IoKind::kRead, kPageBytes).error, ENODATA);
  EXPECT_EQ(queue_.seen.size(), 1u);
}

TEST_F(TransferTest, AFailedFlushIsNeverRepeated) {
  queue_.answers = {-EIO};
  EXPECT_EQ(Run(IoKind::kSync, 0).error, EIO);
  EXPECT_EQ(queue_.seen.size(), 1u);
}

TEST_F(TransferTest, MemoryIsOwnedUntilTheLastBlockCameBack) {
  queue_.answers = {0};  // the first block fails; the second is out still
  transfers_.Start({IoKind::kRead, 3, 0, memory_.data(), 12 * kPageBytes, 1});
  transfers_.Progress();
  ASSERT_EQ(queue_.out.size(), 2u);
  TransferDone done;
  const IoRequest second = queue_.out.back();
  queue_.out.pop_back();
  transfers_.Progress();
  EXPECT_FALSE(transfers_.Next(&done));
  EXPECT_EQ(queue_.seen.size(), 2u) << "no block is begun after an error";
  queue_.out.push_back(second);
  transfers_.Progress();
  EXPECT_TRUE(transfers_.Next(&done));
  EXPECT_EQ(done.error, ENODATA);
}

TEST_F(TransferTest, BlocksThatTheDeviceKeepsAreCounted) {
  transfers_.Start({IoKind::kRead, 3, 0, memory_.data(), kPageBytes, 1});
  transfers_.Progress();
  EXPECT_EQ(transfers_.Stalled(), 0u);
  clock_.Advance(11 * kNsPerSecond);
  EXPECT_EQ(transfers_.Stalled(), 1u);
  RunToEnd();
  EXPECT_EQ(transfers_.Stalled(), 0u);
}

TEST_F(TransferTest, AnAnswerThatDoesNotComeIsToldOnceForEachLimitAndTakenWhenItComes) {
  transfers_.Start({IoKind::kRead, 3, 8 * kPageBytes, memory_.data(), kPageBytes, 9});
  transfers_.Progress();
  const IoRequest kept = queue_.out.back();
  queue_.out.clear();
  TransferLate late;
  clock_.Advance(29 * kNsPerSecond);
  transfers_.Progress();
  EXPECT_FALSE(transfers_.NextLate(&late));
  for (const bool lost : {false, true}) {
    clock_.Advance(lost ? 300 * kNsPerSecond : 5 * kNsPerSecond);
    for (int i = 0; i < 3; ++i) transfers_.Progress();
    ASSERT_TRUE(transfers_.NextLate(&late));
    EXPECT_EQ(late.tag, 9u);
    EXPECT_EQ(late.offset, 8 * kPageBytes);
    EXPECT_EQ(late.lost, lost);
    EXPECT_FALSE(transfers_.NextLate(&late)) << "once";
  }
  TransferDone done;
  EXPECT_FALSE(transfers_.Next(&done)) << "its memory is the queue's";
  queue_.out.push_back(kept);
  done = RunToEnd();
  EXPECT_EQ(done.error, 0);
  EXPECT_TRUE(done.late);
}

// The first two have the whole depth.
TEST_F(TransferTest, WhatWaitsBehindBlocksThatAreNotAnsweredIsToldTooAndEndsWhenItIsLost) {
  for (uint64_t tag = 0; tag < 2; ++tag)
    transfers_.Start({IoKind::kWrite, 3, 0, memory_.data(), kPageBytes, tag});
  transfers_.Progress();
  const std::deque<IoRequest> kept = std::exchange(queue_.out, {});
  clock_.Advance(5 * kNsPerSecond);
  transfers_.Start({IoKind::kWrite, 3, 8 * kPageBytes, memory_.data(), 6 * kPageBytes, 2});
  transfers_.Start({IoKind::kSync, 2, 0, nullptr, 0, 3});
  TransferLate late;
  TransferDone done;
  for (const bool lost : {false, true}) {
    clock_.Advance(lost ? 262 * kNsPerSecond : 35 * kNsPerSecond);
    transfers_.Progress();
    uint64_t told = 0;
    for (; transfers_.NextLate(&late); told |= 1u << late.tag) EXPECT_EQ(late.lost, lost);
    EXPECT_EQ(told, lost ? 3u : 15u);
    EXPECT_FALSE(transfers_.Next(&done));
  }
  clock_.Advance(40 * kNsPerSecond);
  transfers_.Progress();
  for (uint64_t tags = 0; tags < 2; ++tags) {
    ASSERT_TRUE(transfers_.NextLate(&late) && transfers_.Next(&done));
    EXPECT_TRUE(late.lost && done.late && done.unissued);
    EXPECT_EQ(done.tag, 2 + tags);
    EXPECT_EQ(done.error, ETIMEDOUT);
  }
  EXPECT_EQ(transfers_.in_flight(), 2u) << "what the system has is its own";
  transfers_.Start({IoKind::kWrite, 3, 0, memory_.data(), kPageBytes, 4});
  queue_.out = kept;
  for (const uint64_t tag : {0, 1, 4}) {
    done = RunToEnd();
    EXPECT_EQ(done.tag, tag);
    EXPECT_EQ(done.error, 0);
  }
  EXPECT_EQ(queue_.seen.size(), 3u) << "it was never issued";
}

TEST_F(TransferTest, WhileItsLineIsAnsweredNothingThatWaitsThereIsLate) {
  for (uint64_t tag = 0; tag < 3; ++tag)
    transfers_.Start({IoKind::kRead, 3, 0, memory_.data(), 16 * kPageBytes, tag});
  for (int i = 0; i < 4; ++i) {
    transfers_.Progress();
    clock_.Advance(200 * kNsPerSecond);
  }
  TransferLate late;
  EXPECT_FALSE(transfers_.NextLate(&late));
}

// One block of two is out when the transfer is lost.
TEST_F(TransferTest, TheRestOfWhatIsLostIsNotIssued) {
  for (uint64_t tag = 0; tag < 2; ++tag)
    transfers_.Start({IoKind::kWrite, 3, 0, memory_.data(), (1 + 7 * tag) * kPageBytes, tag});
  transfers_.Progress();
  const std::deque<IoRequest> kept = std::exchange(queue_.out, {});
  ASSERT_EQ(kept.size(), 2u);
  clock_.Advance(400 * kNsPerSecond);
  transfers_.Progress();
  queue_.out = {kept[1]};
  TransferDone done = RunToEnd();
  EXPECT_EQ(done.tag, 1u);
  EXPECT_EQ(done.error, ETIMEDOUT);
  EXPECT_FALSE(done.unissued);
  queue_.out = {kept[0]};
  done = RunToEnd();
  EXPECT_EQ(done.error, 0);
  EXPECT_EQ(queue_.seen.size(), 2u);
}

// Depth 8 for two lines: a drive that hangs keeps four blocks, however much is asked of it.
TEST(TransferLines, ALineThatHangsTakesNothingFromTheOther) {
  FakeClock clock;
  SimDisk disk(1, std::vector<uint64_t>(2, 64 * kPageBytes), 8);
  TransferQueue transfers(
      &disk, &clock,
      {.transfers_max = 6, .block_bytes = kPageBytes, .files = 2, .files_per_line = 1});
  std::vector<std::byte> memory(6 * 8 * kPageBytes);
  disk.Hang(0);
  for (uint64_t i = 0; i < 4; ++i)
    transfers.Start(
        {IoKind::kWrite, 0, 8 * i * kPageBytes, &memory[8 * i * kPageBytes], 8 * kPageBytes, i});
  transfers.Progress();
  EXPECT_EQ(disk.requests(), 4u);
  for (uint64_t i = 4; i < 6; ++i)
    transfers.Start({IoKind::kWrite, 1, 0, &memory[8 * i * kPageBytes], 8 * kPageBytes, i});
  TransferDone done;
  for (uint32_t ended = 0, turns = 0; ended < 2; ++turns) {
    ASSERT_LT(turns, 10'000u) << "the other drive is waited for";
    transfers.Progress();
    while (transfers.Next(&done)) {
      EXPECT_GE(done.tag, 4u);
      ++ended;
    }
  }
  disk.Wake();
  for (uint32_t turns = 0; transfers.in_flight() > 0; ++turns) {
    ASSERT_LT(turns, 10'000u);
    transfers.Progress();
    while (transfers.Next(&done)) EXPECT_EQ(done.error, 0);
  }
}

}  // namespace transfer_test
}  // namespace tidepool::nvme
