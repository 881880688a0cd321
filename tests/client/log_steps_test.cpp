// The process that logs steps: what memserver gives is in the log; a failing drive, and a reader
// that lags, end the log alone and let go of memserver.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/checkpoint/step_log.h"
#include "base/system/futex.h"
#include "base/system/whole_file.h"
#include "client/checkpoint/log_steps.h"
#include "client/checkpoint/safe_steps.h"
#include "shm/segment.h"
#include "shm/state_stream.h"

namespace tidepool::client {
namespace log_steps_test {

namespace fs = std::filesystem;

constexpr uint64_t kBytes = 4096;

// memserver's side of a stream.
class Given {
 public:
  Given()
      : memory_(std::move(shm::Segment::Create("t", shm::kStreamBytes, shm::PeerAccess::kReadWrite))
                    .value()),
        head_(shm::HeadOf(memory_->data())) {}

  UniqueFd fd() const { return UniqueFd(dup(memory_->fd())); }
  void Step(uint64_t version) {
    std::memset(Slot(), static_cast<int>(version), kBytes);
    Give({.plane = shm::kStreamGradients, .bytes = kBytes});
    const LoggedStep step{.version = version};
    std::memcpy(Slot(), &step, sizeof step);
    Give({.plane = shm::kStreamStep, .bytes = sizeof step});
  }
  void End(shm::StreamEnd end) {
    head_->pieces = given_;
    head_->end.store(static_cast<uint32_t>(end));
    head_->given.store(given_ + 1);
    WakeWord(&head_->given);
  }
  bool left() const { return head_->left.load() != 0; }
  bool taken_all() const { return head_->taken.load() == given_; }
  void Give(const shm::StreamPiece& piece) {
    *shm::PieceOf(memory_->data(), given_) = piece;
    head_->given.store(++given_);
    WakeWord(&head_->given);
  }

 private:
  std::byte* Slot() {
    while (given_ - head_->taken.load() >= shm::kStreamSlots && !left()) usleep(100);
    return shm::SlotOf(memory_->data(), given_);
  }
  std::unique_ptr<shm::Segment> memory_;
  shm::StreamHead* const head_;
  uint32_t given_ = 0;
};

class LogStepsTest : public ::testing::Test {
 protected:
  LogStepsTest() {
    std::string path = fs::temp_directory_path() / "log-steps-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~LogStepsTest() override { fs::remove_all(folder_); }

  LogTask Task(const Given& given, FileFault fault = nullptr) {
    return {.memory = given.fd(),
            .folder = folder_ + "/log",
            .checkpoints = folder_ + "/checkpoints",
            .run = 5,
            .base = 1,
            .model = 3,
            .every = 3,
            .clock = &clock_,
            .fault = std::move(fault)};
  }
  size_t Logged(uint64_t base = 1) const {
    Result<StepLog> log = StepLog::Open({.folder = folder_ + "/log",
                                         .run = 5,
                                         .base = base,
                                         .model = 3,
                                         .gradient_bytes = {kBytes}});
    EXPECT_TRUE(log.ok()) << log.status().Format();
    return log.ok() ? log->steps().size() : 0;
  }

  // A whole checkpoint of a run.
  void Save(uint64_t version, uint64_t run) const {
    const std::string partial = folder_ + "/checkpoints/" + CheckpointName(version) + ".partial";
    fs::create_directories(partial);
    ASSERT_TRUE(WriteWholeFile(partial + "/" + kStepLogFile, StepLogText(run)).ok());
    auto writer = CheckpointWriter::Begin(partial, {{kMasterFile, "w", "F32", {}}});
    ASSERT_TRUE(writer.ok());
    const std::vector<std::byte> bytes(4);
    ASSERT_TRUE(writer->Write(kMasterFile, "w", bytes).ok());
    ASSERT_TRUE(writer->Commit({.version = version}).ok());
  }

  SteadyClock clock_;
  std::string folder_;
};

TEST_F(LogStepsTest, WhatIsGivenIsLogged) {
  Given given;
  Status logged;
  std::thread process([&] { logged = LogSteps(Task(given)); });
  for (uint64_t version = 2; version <= 8; ++version) given.Step(version);
  given.End(shm::StreamEnd::kWhole);
  process.join();
  EXPECT_TRUE(logged.ok()) << logged.Format();
  EXPECT_EQ(Logged(), 7U);
  EXPECT_EQ(FindSegments(folder_ + "/log")->size(), 3U) << "behind 1, 3 and 6";
}

// A stream that memserver ends early, as where it is killed and the trainer says so.
TEST_F(LogStepsTest, WhatCameBeforeTheEndIsSafe) {
  for (const bool failed : {false, true}) {
    fs::remove_all(folder_ + "/log");
    Given given;
    std::atomic<bool> over{false};
    Status logged;
    std::thread process([&] {
      LogTask task = Task(given);
      task.over = &over;
      logged = LogSteps(std::move(task));
    });
    for (uint64_t version = 2; version <= 4; ++version) given.Step(version);
    if (failed) given.End(shm::StreamEnd::kFailed);
    if (!failed) over.store(true);
    process.join();
    EXPECT_EQ(logged.ok(), !failed);
    EXPECT_EQ(Logged(), 3U);
  }
}

TEST_F(LogStepsTest, AFullOrFailingDriveEndsTheLogAndHoldsNobody) {
  for (const int error : {ENOSPC, EIO}) {
    for (const std::string at : {"create", "write", "sync", "syncdir"}) {
      fs::remove_all(folder_ + "/log");
      Given given;
      std::atomic<int> left{at == "write" ? 12 : at == "sync" ? 2 : 1};
      Status logged;
      std::thread process([&] {
        logged = LogSteps(Task(given, [&](const char* operation, const std::string&) {
          return operation == at && left.fetch_sub(1) <= 0 ? error : 0;
        }));
      });
      for (uint64_t version = 2; version <= 60 && !given.left(); ++version) given.Step(version);
      given.End(shm::StreamEnd::kWhole);
      process.join();
      EXPECT_EQ(logged.id(), ErrorId::kSaveFailed) << at;
      EXPECT_NE(logged.what().find(std::strerror(error)), std::string::npos) << logged.what();
      EXPECT_TRUE(given.left());
      (void)Logged();
    }
  }
}

TEST_F(LogStepsTest, ASyncThatNeverEndsIsNoticed) {
  Given given;
  // The thread that hangs has a share: it ends after the one that gave it up.
  const auto hangs = std::make_shared<std::atomic<bool>>(true);
  LogTask task = Task(given, [hangs](const char* operation, const std::string& path) {
    const bool first = path.find("steps-00000001") != std::string::npos;
    static std::atomic<int> syncs{0};
    if (std::string(operation) == "sync" && first && syncs++ > 0) {
      while (hangs->load()) usleep(1000);
    }
    return 0;
  });
  task.sync_limit_ns = 50 * kNsPerMs;
  Status logged;
  std::thread process([&] { logged = LogSteps(std::move(task)); });
  given.Step(2);
  process.join();
  EXPECT_EQ(logged.id(), ErrorId::kSaveFailed);
  EXPECT_NE(logged.what().find("does not answer"), std::string::npos);
  EXPECT_TRUE(given.left());
  hangs->store(false);
  while (hangs.use_count() > 1) usleep(1000);
}

TEST_F(LogStepsTest, PiecesThatNoServerGivesAreRefused) {
  for (const shm::StreamPiece& piece :
       {shm::StreamPiece{.plane = 3, .bytes = 8}, shm::StreamPiece{.plane = shm::kStreamStep},
        shm::StreamPiece{.plane = shm::kStreamGradients, .bytes = shm::kStreamSlotBytes + 1}}) {
    fs::remove_all(folder_ + "/log");
    Given given;
    given.Give(piece);
    EXPECT_EQ(LogSteps(Task(given)).id(), ErrorId::kDataBad);
    EXPECT_TRUE(given.left());
  }
}

// What is told to be safe has been synced, and the checkpoint that it follows is whole.
TEST_F(LogStepsTest, AStepIsToldToBeSafeWhenAPowerCutLeavesIt) {
  Given given;
  auto safe = SafeSteps::Of(given.fd().get());
  ASSERT_TRUE(safe.ok());
  std::atomic<int> permits{1}, syncs{0};  // the first one is of the segment itself
  Status logged;
  std::thread process([&] {
    LogTask task = Task(given, [&](const char* operation, const std::string&) {
      if (std::strcmp(operation, "sync") != 0) return 0;
      const int number = ++syncs;
      while (permits.load() < number) usleep(100);
      return 0;
    });
    task.every = 0;
    logged = LogSteps(std::move(task));
  });
  const auto await = [&](const auto& reached) {
    while (!reached()) usleep(100);
  };
  given.Step(2);
  await([&] { return syncs.load() == 2; });
  given.Step(3);
  await([&] { return given.taken_all(); });
  permits = 2;
  await([&] { return syncs.load() == 3; });
  EXPECT_EQ(safe->version(), 0U) << "its checkpoint is not whole";

  Save(1, 5);
  permits = 3;
  await([&] { return safe->version() != 0; });
  EXPECT_EQ(safe->version(), 3U);
  given.Step(4);
  await([&] { return syncs.load() == 4; });
  given.Step(5);
  await([&] { return given.taken_all(); });
  EXPECT_EQ(safe->version(), 3U);
  permits = 4;
  await([&] { return syncs.load() == 5; });
  EXPECT_EQ(safe->version(), 4U) << "step 5 came while the drive worked";

  permits = 100;
  for (Version seen = 4; safe->version() < 5;) safe->AwaitChange(seen, kNsPerSecond);
  given.End(shm::StreamEnd::kWhole);
  process.join();
  EXPECT_TRUE(logged.ok()) << logged.Format();
}

// Only a whole checkpoint of this run makes steps needless.
TEST_F(LogStepsTest, ACheckpointOfTheRunTrimsTheLog) {
  Given given;
  Status logged;
  std::thread process([&] { logged = LogSteps(Task(given)); });
  for (uint64_t version = 2; version <= 4; ++version) given.Step(version);
  const std::string first = folder_ + "/log/" + SegmentName(1, 5);
  Save(4, 6);
  given.Step(5);
  usleep(300'000);
  EXPECT_TRUE(fs::exists(first)) << "the checkpoint of another run";
  Save(3, 5);
  for (int i = 0; i < 100 && fs::exists(first); ++i) usleep(20'000);
  EXPECT_FALSE(fs::exists(first));
  given.End(shm::StreamEnd::kWhole);
  process.join();
  EXPECT_TRUE(logged.ok()) << logged.Format();
  EXPECT_EQ(Logged(3), 2U);
}

}  // namespace log_steps_test
}  // namespace tidepool::client
