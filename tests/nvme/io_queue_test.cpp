// The contract of IoQueue, for every form of it, and what happens where io_uring is denied.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "nvme/io_queue.h"
#include "nvme/uring_queue.h"
#include "tests/fakes/sim_disk.h"
#include "tests/nvme/deny_io_uring.h"
#include "tests/nvme/scratch_directory.h"

namespace tidepool::nvme {
namespace io_queue_test {

constexpr uint64_t kFileBytes = 64 * kKiB;
constexpr uint32_t kDepth = 8;

enum class Form { kUring, kThreads, kSimulated };

struct Freer {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

class IoQueueContract : public ::testing::TestWithParam<Form> {
 protected:
  IoQueueContract() : memory_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kFileBytes))) {
    const std::string path = directory_.path() + "/file";
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    EXPECT_EQ(posix_fallocate(fd_, 0, kFileBytes), 0);
    std::memset(memory_.get(), 0, kFileBytes);
    if (GetParam() == Form::kSimulated) {
      const std::array<uint64_t, 1> sizes{kFileBytes};
      queue_ = std::make_unique<SimDisk>(1, sizes, kDepth);
      return;
    }
    IoQueueOptions options;
    options.depth = kDepth;
    options.allow_uring = GetParam() == Form::kUring;
    options.files = {fd_};
    options.buffers = {{memory_.get(), kFileBytes / 2}};
    OpenedIoQueue opened = OpenIoQueue(options);
    queue_ = std::move(opened.queue);
    name_is_ring_ = queue_->Name().starts_with("io_uring");
  }
  ~IoQueueContract() override {
    queue_.reset();
    close(fd_);
  }

  IoDone Wait() {
    SteadyClock clock;
    for (const int64_t end = clock.NowNs() + 20 * kNsPerSecond; clock.NowNs() < end;) {
      queue_->Flush();
      if (auto done = queue_->Reap()) return {done->tag, IoResult(done->result.Read())};
      std::this_thread::yield();
    }
    ADD_FAILURE() << "no answer came";
    return {0, IoResult(-ETIMEDOUT)};
  }
  int32_t Do(IoKind kind, uint64_t offset, std::byte* data, uint32_t bytes) {
    queue_->Submit({kind, 0, offset, data, bytes, 77});
    IoDone done = Wait();
    EXPECT_EQ(done.tag, 77u);
    return done.result.Read();
  }

  ScratchDirectory directory_;
  std::unique_ptr<std::byte[], Freer> memory_;
  int fd_ = -1;
  bool name_is_ring_ = false;
  std::unique_ptr<IoQueue> queue_;
};

TEST_P(IoQueueContract, WritesAreReadBackFromRegisteredAndOtherMemory) {
  std::byte* const inside = memory_.get();
  std::byte* const outside = memory_.get() + kFileBytes / 2;
  for (uint32_t i = 0; i < 2 * kPageBytes; ++i)
    inside[i] = outside[i] = static_cast<std::byte>(i * 7 + i / 256);
  EXPECT_EQ(Do(IoKind::kWrite, 0, inside, 2 * kPageBytes), 2 * kPageBytes);
  EXPECT_EQ(Do(IoKind::kWrite, 3 * kPageBytes, outside, 2 * kPageBytes), 2 * kPageBytes);
  EXPECT_EQ(Do(IoKind::kSync, 0, nullptr, 0), 0);
  std::memset(inside, 0, 2 * kPageBytes);
  EXPECT_EQ(Do(IoKind::kRead, 3 * kPageBytes, inside, 2 * kPageBytes), 2 * kPageBytes);
  EXPECT_EQ(std::memcmp(inside, outside, 2 * kPageBytes), 0);
  EXPECT_EQ(Do(IoKind::kRead, 0, inside + 4 * kPageBytes, 2 * kPageBytes), 2 * kPageBytes);
  EXPECT_EQ(std::memcmp(inside + 4 * kPageBytes, outside, 2 * kPageBytes), 0);
}

TEST_P(IoQueueContract, AsManyAsTheDepthAreOutAtOnceAndEachComesBackOnce) {
  for (uint32_t round = 0; round < 5; ++round) {
    std::set<uint64_t> tags;
    for (uint32_t i = 0; i < kDepth; ++i) {
      queue_->Submit(
          {IoKind::kWrite, 0, i * kPageBytes, memory_.get() + i * kPageBytes, kPageBytes, 100 + i});
    }
    for (uint32_t i = 0; i < kDepth; ++i) {
      IoDone done = Wait();
      EXPECT_EQ(done.result.Read(), static_cast<int32_t>(kPageBytes));
      tags.insert(done.tag);
    }
    EXPECT_EQ(tags.size(), kDepth);
    EXPECT_FALSE(queue_->Reap().has_value());
  }
}

TEST_P(IoQueueContract, TheEventTellsOfAnAnswer) {
  if (GetParam() == Form::kSimulated) {
    EXPECT_EQ(queue_->event_fd(), -1) << "it is never waited for";
    return;
  }
  queue_->ClearEvent();
  queue_->Submit({IoKind::kRead, 0, 0, memory_.get(), kPageBytes, 5});
  queue_->Flush();
  uint64_t count = 0;
  SteadyClock clock;
  for (const int64_t end = clock.NowNs() + 20 * kNsPerSecond;
       clock.NowNs() < end && read(queue_->event_fd(), &count, 8) != 8;) {
    std::this_thread::yield();
  }
  EXPECT_GE(count, 1u);
  EXPECT_EQ(Wait().result.Read(), static_cast<int32_t>(kPageBytes));
}

TEST_P(IoQueueContract, TheRealFormIsTheOneThatWasAskedFor) {
  EXPECT_EQ(name_is_ring_, GetParam() == Form::kUring) << queue_->Name();
}

INSTANTIATE_TEST_SUITE_P(Forms, IoQueueContract,
                         ::testing::Values(Form::kUring, Form::kThreads, Form::kSimulated));

TEST(IoResultDeath, AResultThatNobodyLooksAtStopsTheProcess) {
  EXPECT_DEATH({ const IoResult result(-EIO); }, "looked at");
}

// The exit code of a child that does it; what it changes about itself ends with it.
int InChild(const std::function<int()>& action) {
  const pid_t child = fork();
  if (child == 0) _exit(action());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return WEXITSTATUS(status);
}

TEST(IoQueueDenied, WithoutIoUringThreadsServeAndTheReasonIsGiven) {
  const ScratchDirectory directory;
  EXPECT_EQ(InChild([&] {
              if (!DenyIoUring()) return 10;
              IoQueueOptions options;
              options.files = {open((directory.path() + "/f").c_str(), O_RDWR | O_CREAT, 0600)};
              if (UringQueue::Open(options).status().id() != ErrorId::kNvmeRingDenied) return 12;
              const OpenedIoQueue opened = OpenIoQueue(options);
              const bool told =
                  opened.fallback == "the system gives no io_uring: Operation not permitted";
              return told && opened.queue->Name().find("threads") != std::string::npos ? 0 : 11;
            }),
            0);
}

TEST(IoQueueDenied, WhereTooLittleMemoryMayBeLockedItIsNotRegisteredAndTheReasonIsGiven) {
  const ScratchDirectory directory;
  const int file = open((directory.path() + "/f").c_str(), O_RDWR | O_CREAT, 0600);
  const std::unique_ptr<std::byte[], Freer> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kMiB)));
  std::memset(memory.get(), 1, kMiB);
  EXPECT_EQ(InChild([&] {
              const rlimit little{64 * kKiB, 64 * kKiB};
              constexpr uid_t kNobody = 65534;  // root may lock what it wants
              if (setrlimit(RLIMIT_MEMLOCK, &little) != 0 ||
                  (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0))
                return 10;
              IoQueueOptions options;
              options.files = {file};
              options.buffers = {{memory.get(), kMiB}};
              const OpenedIoQueue opened = OpenIoQueue(options);
              if (opened.fallback.empty()) return 11;
              opened.queue->Submit({IoKind::kWrite, 0, 0, memory.get(), kMiB, 5});
              opened.queue->Flush();
              for (;;) {
                if (auto done = opened.queue->Reap())
                  return done->result.Read() == static_cast<int32_t>(kMiB) ? 0 : 12;
                std::this_thread::yield();
              }
            }),
            0);
  close(file);
}

}  // namespace io_queue_test
}  // namespace tidepool::nvme
