// Faults that come through the kernel: a mounted file system that fails (FUSE), and what anybody
// can do to a file behind its user's back. By io_uring and by threads, with direct transfers: every
// fault is repaired or named, wrong bytes that were believed: none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "nvme/io_queue.h"
#include "tests/fakes/fault_fs.h"
#include "tests/nvme/many_times.h"
#include "tests/nvme/places_under_faults.h"
#include "tests/nvme/scratch_directory.h"

namespace tidepool::nvme {
namespace kernel_faults_test {

constexpr uint64_t kFileBytes = kPlaces * kSampleBytes;

UniqueFd OpenDirect(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  EXPECT_TRUE(fd.valid()) << path << ": " << std::strerror(errno);
  return fd;
}

// A queue over a file, and the places in it.
struct World {
  World(int fd, bool uring, uint64_t seed)
      : opened(OpenIoQueue({.depth = 8, .allow_uring = uring, .files = {fd}, .buffers = {}})),
        places(seed, opened.queue.get(), &clock, [this] { clock.SleepNs(kNsPerMs / 20); }) {
    EXPECT_EQ(opened.queue->Name().starts_with("io_uring"), uring) << opened.fallback;
  }
  SteadyClock clock;
  OpenedIoQueue opened;
  PlacesUnderFaults places;
};

void ExpectHonest(const Tally& tally) {
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_GT(tally.right, tally.reads / 4);
  EXPECT_GT(tally.refused, 0u);
  EXPECT_GT(tally.failed, 0u);
}

std::vector<uint32_t> Odds() {
  std::vector<uint32_t> odds(static_cast<size_t>(DiskFault::kCount), 60);
  odds[static_cast<size_t>(DiskFault::kReadError)] =
      odds[static_cast<size_t>(DiskFault::kWriteError)] = 4;
  return odds;
}

// Machines without /dev/fuse, without the right to mount, or whose root is no mount (chroot), have
// the second test alone; any other reason is a failure.
TEST(KernelFaults, AFileSystemThatFailsIsRepairedOrNamed) {
  const ScratchDirectory directory;
  const uint64_t times = NumberIn("TIDEPOOL_NVME_TIMES", 1), seed = SeedOr(7);
  for (const bool uring : {true, false}) {
    const uint64_t faults = times * (uring ? 500 : 250);
    std::string why;
    const auto fs =
        FaultFs::Mount({directory.path(), kFileBytes, seed + (uring ? 1 : 2), Odds()}, &why);
    if (fs == nullptr) {
      EXPECT_TRUE(errno == EPERM || errno == EACCES || errno == ENOENT || errno == ENXIO ||
                  errno == ENODEV || errno == EINVAL)
          << why;
      GTEST_LOG_(WARNING) << "no file system of our own: " << why;
      return;
    }
    const UniqueFd fd = OpenDirect(fs->file());
    World world(fd.get(), uring, seed);
    while (fs->faults() < faults && !HasFailure()) world.places.Step();
    ExpectHonest(world.places.tally());
    for (const auto fault : {DiskFault::kReadError, DiskFault::kWriteError, DiskFault::kShort,
                             DiskFault::kFlipInAnswer}) {
      EXPECT_GT(fs->faults(fault), 0u) << static_cast<int>(fault);
    }
  }
}

// The kernel holds requests whose file system does not answer: they are told, another drive's go
// on, and late answers are taken.
TEST(KernelFaults, AFileSystemThatHangsIsToldAndHoldsUpNoOther) {
  constexpr int64_t kLateNs = 50 * kNsPerMs, kLimitNs = 30 * kNsPerSecond;
  for (const bool uring : {true, false}) {
    const ScratchDirectory mounted, plain;
    std::string why;
    const auto fs = FaultFs::Mount({mounted.path(), kFileBytes, 1, {}}, &why);
    if (fs == nullptr) {  // as above
      GTEST_LOG_(WARNING) << "no file system of our own: " << why;
      return;
    }
    const std::string path = plain.path() + "/states";
    close(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    std::filesystem::resize_file(path, kFileBytes);
    const UniqueFd hanging = OpenDirect(fs->file()), good = OpenDirect(path);
    SteadyClock clock;
    const PageMemory memory = PageMemory::Map(16 * kPageBytes).value();
    const OpenedIoQueue opened = OpenIoQueue({.depth = 16,
                                              .allow_uring = uring,
                                              .threads = 2,
                                              .files = {hanging.get(), good.get()},
                                              .files_per_line = 1,
                                              .buffers = {}});
    TransferQueue transfers(opened.queue.get(), &clock,
                            {.transfers_max = 16,
                             .block_bytes = kPageBytes,
                             .files = 2,
                             .files_per_line = 1,
                             .late_ns = kLateNs});
    const auto start = [&](uint32_t file, uint64_t i) {
      transfers.Start({IoKind::kRead, file, i * kPageBytes,
                       memory.bytes().data() + (8 * file + i) * kPageBytes, kPageBytes,
                       8 * file + i});
    };
    uint32_t good_ones = 0, late_ones = 0, ended_late = 0;
    const int64_t end = clock.NowNs() + kLimitNs;
    const auto go_on = [&](auto done_with) {
      while (!done_with() && clock.NowNs() < end) {
        if (!transfers.Progress()) clock.SleepNs(kNsPerMs);
        TransferDone done;
        while (transfers.Next(&done)) {
          EXPECT_EQ(done.error, 0);
          (done.tag < 8 ? ended_late : good_ones) += done.tag < 8 ? (done.late ? 1u : 0u) : 1u;
        }
        TransferLate late;
        while (transfers.NextLate(&late)) {
          EXPECT_LT(late.tag, 8u);
          ++late_ones;
        }
      }
    };
    // io_uring asks a file system of FUSE once, and waits, whether it knows poll: before it hangs.
    start(0, 0);
    go_on([&] { return transfers.in_flight() == 0; });
    fs->Hang();
    for (uint64_t i = 0; i < 8; ++i) start(0, i);
    for (uint64_t i = 0; i < 8; ++i) start(1, i);
    go_on([&] { return good_ones == 8 && late_ones == 8; });
    EXPECT_EQ(good_ones, 8u) << opened.queue->Name();
    EXPECT_EQ(late_ones, 8u) << opened.queue->Name();
    EXPECT_EQ(transfers.in_flight(), 8u);
    fs->Wake();
    go_on([&] { return transfers.in_flight() == 0; });
    EXPECT_EQ(ended_late, 8u) << opened.queue->Name();
  }
}

// One read as DeepSpeed makes it (csrc/aio/common/deepspeed_aio_common.cpp: io_submit,
// io_getevents, and `event.res` is never read): what it takes for its states afterwards is what lay
// in the buffer before.
void ReadAsThePeer(int fd, std::span<std::byte> buffer, int64_t* unread_result) {
  aio_context_t context = 0;
  ASSERT_EQ(syscall(SYS_io_setup, 1, &context), 0) << std::strerror(errno);
  iocb request{};
  request.aio_lio_opcode = IOCB_CMD_PREAD;
  request.aio_fildes = static_cast<uint32_t>(fd);
  request.aio_buf = reinterpret_cast<uintptr_t>(buffer.data());
  request.aio_nbytes = buffer.size();
  iocb* const requests[] = {&request};
  ASSERT_EQ(syscall(SYS_io_submit, context, 1, requests), 1) << std::strerror(errno);
  io_event event{};
  ASSERT_EQ(syscall(SYS_io_getevents, context, 1, 1, &event, nullptr), 1) << std::strerror(errno);
  *unread_result = event.res;
  syscall(SYS_io_destroy, context);
}

TEST(KernelFaults, TheSameEioPassesForAReadWithThePeersPatternAndIsNamedByOurs) {
  const ScratchDirectory directory;
  std::string why;
  std::vector<uint32_t> odds(static_cast<size_t>(DiskFault::kCount), 0);
  odds[static_cast<size_t>(DiskFault::kReadError)] = 1;
  const auto fs = FaultFs::Mount({directory.path(), kFileBytes, 1, odds}, &why);
  if (fs == nullptr) {  // as above
    GTEST_LOG_(WARNING) << "no file system of our own: " << why;
    return;
  }
  const UniqueFd fd = OpenDirect(fs->file());
  const PageMemory memory = PageMemory::Map(2 * kPageBytes).value();
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0x5a});
  int64_t unread_result = 0;
  ReadAsThePeer(fd.get(), memory.bytes().first(kPageBytes), &unread_result);
  EXPECT_EQ(unread_result, -EIO) << "it was there to be read";
  EXPECT_EQ(memory.bytes()[0], std::byte{0x5a})
      << "the bytes of before, taken for those of the file";

  SteadyClock clock;
  const OpenedIoQueue opened = OpenIoQueue({.depth = 8, .files = {fd.get()}, .buffers = {}});
  TransferQueue transfers(opened.queue.get(), &clock,
                          {.transfers_max = 1, .block_bytes = kPageBytes, .files = 1});
  transfers.Start(
      {IoKind::kRead, 0, kPageBytes, memory.bytes().data() + kPageBytes, kPageBytes, 7});
  TransferDone done;
  while (!transfers.Next(&done)) {
    if (!transfers.Progress()) clock.SleepNs(kNsPerMs / 4);
  }
  EXPECT_EQ(done.error, EIO) << opened.queue->Name();
  EXPECT_EQ(done.offset, kPageBytes);
  EXPECT_EQ(done.repetitions, kTriesMax);
}

// What needs no rights: bits change at rest, a write is undone, the file is cut off, a limit
// refuses writes.
class Mischief {
 public:
  Mischief(std::string path, uint64_t seed)
      : path_(std::move(path)), random_(seed), fd_(OpenDirect(path_)) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
  }
  ~Mischief() { setrlimit(RLIMIT_FSIZE, &before_); }

  void Before() {
    switch (random_.Below(12)) {
      case 0: return Flip();
      case 1: saved_ = Bytes(); return;
      case 2: return Undo();
      case 3: return CutOff();
      case 4: return random_.Below(4) == 0 ? Limit() : void();
      default: return;
    }
  }
  // What was limited or cut off is not any more; what lay behind the end is lost.
  void After() {
    setrlimit(RLIMIT_FSIZE, &before_);
    if (ftruncate(fd_.get(), kFileBytes) != 0) ADD_FAILURE() << std::strerror(errno);
  }
  uint64_t faults() const { return faults_; }

 private:
  std::span<std::byte> Bytes() {
    EXPECT_EQ(pread(fd_.get(), memory_.bytes().data(), kFileBytes, 0),
              static_cast<ssize_t>(kFileBytes))
        << std::strerror(errno);
    return memory_.bytes();
  }
  void Put() {
    EXPECT_EQ(pwrite(fd_.get(), memory_.bytes().data(), kFileBytes, 0),
              static_cast<ssize_t>(kFileBytes))
        << std::strerror(errno);
    ++faults_;
  }
  void Flip() {
    Bytes()[random_.Below(kFileBytes)] ^= std::byte{1} << random_.Below(8);
    Put();
  }
  void Undo() {
    if (!saved_) return;
    std::memcpy(memory_.bytes().data(), saved_->data(), kFileBytes);
    Put();
  }
  void CutOff() {
    if (ftruncate(fd_.get(), static_cast<off_t>(random_.Below(kFileBytes))) == 0) ++faults_;
  }
  void Limit() {
    rlimit little = before_;
    little.rlim_cur = random_.Below(kFileBytes);
    if (setrlimit(RLIMIT_FSIZE, &little) == 0) ++faults_;
  }

  struct Copy : std::vector<std::byte> {
    Copy(std::span<std::byte> from) : std::vector<std::byte>(from.begin(), from.end()) {}
  };
  const std::string path_;
  SplitMix64 random_;
  PageMemory memory_ = PageMemory::Map(kFileBytes).value();
  const UniqueFd fd_;
  rlimit before_{};
  std::optional<Copy> saved_;
  uint64_t faults_ = 0;
};

TEST(KernelFaults, AFileThatIsChangedCutOffAndLimitedIsRefusedOrNamed) {
  const ScratchDirectory directory;
  const std::string path = directory.path() + "/states";
  const uint64_t faults = 250 * NumberIn("TIDEPOOL_NVME_TIMES", 1), seed = SeedOr(9);
  for (const bool uring : {true, false}) {
    close(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    std::filesystem::resize_file(path, kFileBytes);
    Mischief mischief(path, seed + 1);
    const UniqueFd fd = OpenDirect(path);
    World world(fd.get(), uring, seed);
    while (mischief.faults() < faults && !HasFailure()) {
      mischief.Before();
      world.places.Step();
      mischief.After();
    }
    ExpectHonest(world.places.tally());
  }
}

}  // namespace kernel_faults_test
}  // namespace tidepool::nvme
