// The contract of device/device.h, which every form of Device must keep. To add a form, add one line to Forms().
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "device/device.h"
#include "device/host_device.h"

namespace tidepool::device {
namespace device_contract_test {

struct Form {
  const char* name;
  std::unique_ptr<Device> (*make)();
};

const Form kForms[] = {
    {"HostInline", [] { return std::unique_ptr<Device>(std::make_unique<HostDevice>(HostDeviceOptions{})); }},
    {"HostThread", [] { return std::unique_ptr<Device>(std::make_unique<HostDevice>(HostDeviceOptions{.copy_threads = 1})); }},
    {"HostThreadThatSleepsAtOnce",
     [] { return std::unique_ptr<Device>(std::make_unique<HostDevice>(HostDeviceOptions{.copy_threads = 1, .spin_ns = 0})); }},
};

constexpr int64_t kPatienceNs = 30 * kNsPerSecond;

class DeviceContract : public ::testing::TestWithParam<Form> {
 protected:
  std::unique_ptr<Stream> Open() {
    auto stream = device_->OpenStream();
    EXPECT_TRUE(stream.ok()) << stream.status().Format();
    return std::move(stream).value();
  }

  std::unique_ptr<Memory> Create(uint64_t bytes, UniqueFd* fd = nullptr) {
    auto memory = device_->CreateExportable(bytes, fd);
    EXPECT_TRUE(memory.ok()) << memory.status().Format();
    return std::move(memory).value();
  }

  // Lets all streams work, in small pieces, until `done`; false when that never happens.
  static bool Drive(std::initializer_list<Stream*> streams, const std::function<bool()>& done, uint64_t bytes_max = 4096) {
    SteadyClock clock;
    const int64_t end = clock.NowNs() + kPatienceNs;
    while (!done()) {
      bool worked = false;
      for (Stream* stream : streams) worked |= stream->Progress(bytes_max);
      if (!worked) clock.SleepNs(10'000);
      if (clock.NowNs() > end) return false;
    }
    return true;
  }

  // Gives everything that could wrongly happen a chance to happen.
  static void Settle(std::initializer_list<Stream*> streams) {
    for (int i = 0; i < 20; ++i) {
      for (Stream* stream : streams) stream->Progress(kMiB);
      SteadyClock().SleepNs(kNsPerMs / 10);
    }
  }

  std::unique_ptr<Device> device_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Forms, DeviceContract, ::testing::ValuesIn(kForms),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(DeviceContract, CopyArrivesWhenItsMarkerHasPassed) {
  std::vector<uint32_t> from(1 << 20), to(1 << 20, 0);
  std::iota(from.begin(), from.end(), 7u);
  auto stream = Open();
  stream->Copy(to.data(), from.data(), from.size() * sizeof(uint32_t));
  stream->Synchronize(stream->Record());
  EXPECT_EQ(from, to);
}

TEST_P(DeviceContract, EmptyCopyIsAllowed) {
  auto stream = Open();
  stream->Copy(nullptr, nullptr, 0);
  const Stream::Marker marker = stream->Record();
  stream->Synchronize(marker);
  EXPECT_TRUE(stream->Passed(marker));
}

TEST_P(DeviceContract, MarkersCountFromOneAndPassInOrder) {
  auto stream = Open();
  std::vector<char> from(100'000, 'x'), to(100'000);
  std::vector<Stream::Marker> markers;
  for (int i = 0; i < 10; ++i) {
    stream->Copy(to.data(), from.data(), from.size());
    markers.push_back(stream->Record());
  }
  for (size_t i = 0; i < markers.size(); ++i) EXPECT_EQ(markers[i], i + 1);
  const auto in_order = [&] {
    bool later = false;
    for (auto it = markers.rbegin(); it != markers.rend(); ++it) {
      const bool passed = stream->Passed(*it);
      if (later && !passed) return false;
      later |= passed;
    }
    return true;
  };
  EXPECT_TRUE(Drive({stream.get()}, [&] {
    EXPECT_TRUE(in_order());
    return stream->Passed(markers.back());
  }));
}

TEST_P(DeviceContract, OperationsOfOneStreamTakeEffectInOrder) {
  // Each copy reads what the copy before it wrote: any other order leaves a hole.
  constexpr int kHops = 2'000;
  std::vector<uint64_t> cells(kHops + 1, 0);
  cells[0] = 0x1234567890ABCDEF;
  auto stream = Open();
  for (int i = 0; i < kHops; ++i) stream->Copy(&cells[i + 1], &cells[i], sizeof(uint64_t));
  stream->Synchronize(stream->Record());
  for (const uint64_t cell : cells) ASSERT_EQ(cell, cells[0]);
}

TEST_P(DeviceContract, FlagIsWrittenOnlyAfterEarlierCopies) {
  std::vector<char> from(8 * kMiB, 'a'), to(8 * kMiB, 0);
  Flag flag{0};
  auto stream = Open();
  stream->Copy(to.data(), from.data(), from.size());
  stream->WriteFlag(&flag, 5);
  ASSERT_TRUE(Drive(
      {stream.get()}, [&] { return flag.load(std::memory_order_acquire) == 5; }, 64 * kKiB));
  EXPECT_EQ(from, to);
}

TEST_P(DeviceContract, WaitHoldsBackItsOwnStreamOnly) {
  Flag flag{0};
  uint64_t one = 1, held = 0, free = 0;
  auto waiting = Open(), other = Open();
  waiting->WaitFlag(&flag, 3);
  waiting->Copy(&held, &one, sizeof one);
  const Stream::Marker held_marker = waiting->Record();
  other->Copy(&free, &one, sizeof one);
  other->Synchronize(other->Record());
  EXPECT_EQ(free, 1u);
  flag.store(2, std::memory_order_release);  // not enough
  Settle({waiting.get()});
  EXPECT_FALSE(waiting->Passed(held_marker));
  flag.store(3, std::memory_order_release);
  waiting->Synchronize(held_marker);
  EXPECT_EQ(held, 1u);
}

TEST_P(DeviceContract, TwoStreamsHandWorkToEachOtherByFlags) {
  constexpr uint64_t kRounds = 500;
  std::vector<uint64_t> cells(2 * kRounds + 1, 0);
  cells[0] = 42;
  Flag ping{0}, pong{0};
  auto a = Open(), b = Open();
  for (uint64_t i = 0; i < kRounds; ++i) {
    a->WaitFlag(&pong, i);
    a->Copy(&cells[2 * i + 1], &cells[2 * i], sizeof(uint64_t));
    a->WriteFlag(&ping, i + 1);
    b->WaitFlag(&ping, i + 1);
    b->Copy(&cells[2 * i + 2], &cells[2 * i + 1], sizeof(uint64_t));
    b->WriteFlag(&pong, i + 1);
  }
  const Stream::Marker end = b->Record();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->Passed(end); }));
  for (const uint64_t cell : cells) ASSERT_EQ(cell, 42u);
}

TEST_P(DeviceContract, FlagsCompareCyclically) {
  // Around 2^64 a small number is later than a great one.
  Flag flag{UINT64_MAX - 1};
  auto stream = Open();
  stream->WaitFlag(&flag, UINT64_MAX - 2);  // reached already
  const Stream::Marker first = stream->Record();
  stream->WaitFlag(&flag, 1);  // three ahead
  const Stream::Marker second = stream->Record();
  stream->Synchronize(first);
  Settle({stream.get()});
  EXPECT_FALSE(stream->Passed(second));
  flag.store(1, std::memory_order_release);
  stream->Synchronize(second);
  EXPECT_TRUE(stream->Passed(second));
}

TEST_P(DeviceContract, PoisonEndsEveryWait) {
  for (const uint64_t value : {uint64_t{1}, uint64_t{1} << 62, uint64_t{1} << 63, UINT64_MAX}) {
    Flag flag{value - 2};
    auto stream = Open();
    stream->WaitFlag(&flag, value);
    const Stream::Marker marker = stream->Record();
    Settle({stream.get()});
    EXPECT_FALSE(stream->Passed(marker)) << value;
    flag.store(kFlagPoison, std::memory_order_release);
    stream->Synchronize(marker);
    EXPECT_TRUE(stream->Passed(marker)) << value;
  }
}

TEST_P(DeviceContract, ManySmallCopiesOnSeveralStreamsAllArrive) {
  constexpr size_t kStreams = 3, kCopies = 3'000, kBytes = 96;
  std::vector<std::vector<uint8_t>> from(kStreams), to(kStreams);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream::Marker> ends;
  SplitMix64 random(11);
  for (size_t s = 0; s < kStreams; ++s) {
    streams.push_back(Open());
    from[s].resize(kCopies * kBytes);
    to[s].resize(kCopies * kBytes, 0);
    for (uint8_t& byte : from[s]) byte = static_cast<uint8_t>(random.Next());
  }
  for (size_t i = 0; i < kCopies; ++i) {  // interleaved: every stream has work at the same time
    for (size_t s = 0; s < kStreams; ++s) streams[s]->Copy(&to[s][i * kBytes], &from[s][i * kBytes], kBytes);
  }
  for (auto& stream : streams) ends.push_back(stream->Record());
  ASSERT_TRUE(Drive({streams[0].get(), streams[1].get(), streams[2].get()},
                    [&] { return streams[0]->Passed(ends[0]) && streams[1]->Passed(ends[1]) && streams[2]->Passed(ends[2]); }));
  EXPECT_EQ(from, to);
}

TEST_P(DeviceContract, RepeatedUseAfterAnIdleTimeWorks) {
  auto stream = Open();
  for (uint64_t round = 1; round <= 20; ++round) {
    uint64_t to = 0;
    stream->Copy(&to, &round, sizeof to);
    stream->Synchronize(stream->Record());
    EXPECT_EQ(to, round);
    SteadyClock().SleepNs(kNsPerMs / 5);  // long enough for a threaded form to fall asleep
  }
}

TEST_P(DeviceContract, EventTellsOfEveryPassedMarker) {
  auto stream = Open();
  std::vector<char> from(300'000, 'e'), to(300'000);
  for (int round = 0; round < 50; ++round) {
    stream->Copy(to.data(), from.data(), from.size());
    const Stream::Marker marker = stream->Record();
    if (stream->event_fd() < 0) {  // a polled form must get on by Progress alone
      ASSERT_TRUE(Drive({stream.get()}, [&] { return stream->Passed(marker); }));
      continue;
    }
    while (true) {
      stream->ClearEvent();
      if (stream->Passed(marker)) break;
      pollfd event{stream->event_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&event, 1, 30'000), 1) << "a marker passed without a word in round " << round;
    }
  }
}

TEST_P(DeviceContract, ProgressIsBoundedAndResumesInsideACopy) {
  constexpr uint64_t kBytes = 10 * kMiB;
  std::vector<char> from(kBytes, 'p'), to(kBytes, 0);
  auto stream = Open();
  if (stream->event_fd() >= 0) {
    EXPECT_FALSE(stream->Progress(kMiB)) << "a form with its own thread does nothing on the caller's";
    return;
  }
  stream->Copy(to.data(), from.data(), kBytes);
  const Stream::Marker marker = stream->Record();
  uint64_t calls = 0;
  for (; !stream->Passed(marker); ++calls) {
    ASSERT_TRUE(stream->Progress(kMiB));
    const auto arrived = static_cast<uint64_t>(std::count(to.begin(), to.end(), 'p'));
    ASSERT_LE(arrived, (calls + 1) * kMiB);
  }
  EXPECT_GE(calls, 10u);
  EXPECT_EQ(from, to);
  EXPECT_FALSE(stream->Progress(kMiB)) << "nothing is left to do";
}

TEST_P(DeviceContract, ClosingAStreamDropsBlockedWork) {
  Flag never{0};
  uint64_t one = 1, to = 0;
  {
    auto stream = Open();
    stream->WaitFlag(&never, 1);
    stream->Copy(&to, &one, sizeof to);
    stream->Record();
  }
  EXPECT_EQ(to, 0u);
}

TEST_P(DeviceContract, ExportableMemoryIsZeroAndSealed) {
  constexpr uint64_t kBytes = 3 * kMiB + 5;
  UniqueFd fd;
  auto memory = Create(kBytes, &fd);
  ASSERT_EQ(memory->bytes(), kBytes);
  ASSERT_TRUE(fd.valid());
  if (memory->is_host()) {
    EXPECT_EQ(static_cast<uint64_t>(std::count(memory->data(), memory->data() + kBytes, std::byte{0})), kBytes);
  }
  EXPECT_NE(ftruncate(fd.get(), 0), 0) << "the file could be shrunk under its users";
  EXPECT_NE(ftruncate(fd.get(), 1 << 30), 0) << "the file could be grown";
}

TEST_P(DeviceContract, BadSizesAndDescriptorsAreErrors) {
  UniqueFd fd;
  EXPECT_FALSE(device_->CreateExportable(0, &fd).ok());
  EXPECT_FALSE(device_->CreateExportable(uint64_t{1} << 50, &fd).ok());
  auto memory = Create(kPageBytes, &fd);
  EXPECT_EQ(device_->Import(fd, 0).status().id(), ErrorId::kMemoryMapFailed);
  EXPECT_EQ(device_->Import(fd, kPageBytes + 1).status().id(), ErrorId::kHandshakeBad) << "shorter than asked";
  EXPECT_EQ(device_->Import(UniqueFd(), kPageBytes).status().id(), ErrorId::kHandshakeBad);
}

// A peer may send any descriptor: only memory whose faults the kernel alone serves may be mapped.
TEST_P(DeviceContract, OnlyMemoryThatADeviceMadeIsImported) {
  constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const auto memfd = [](uint64_t bytes, bool present, int seals) {
    UniqueFd fd(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    const std::vector<char> data(bytes, 'x');
    const size_t written = present ? bytes : 0;
    EXPECT_EQ(pwrite(fd.get(), data.data(), written, 0), static_cast<ssize_t>(written));
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  const auto refused_for = [this](const UniqueFd& fd, const std::string& reason) {
    const Status status = device_->Import(fd, 2 * kPageBytes).status();
    EXPECT_EQ(status.id(), ErrorId::kHandshakeBad) << reason;
    EXPECT_NE(status.what().find(reason), std::string::npos) << status.Format();
  };
  EXPECT_TRUE(device_->Import(memfd(2 * kPageBytes, true, kAllSeals), 2 * kPageBytes - 5).ok()) << "the twin of what a device makes";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  refused_for(reader, "not a memfd");
  refused_for(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "not a memfd");
  refused_for(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), "not a memfd");
  refused_for(memfd(2 * kPageBytes, true, 0), "not sealed");
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    refused_for(memfd(2 * kPageBytes, true, kAllSeals & ~missing), "not sealed");
  }
  refused_for(memfd(2 * kPageBytes, true, kAllSeals | F_SEAL_WRITE), "sealed against writing");
  refused_for(memfd(kPageBytes, true, kAllSeals), "4096 bytes, 8192 are needed");
  refused_for(memfd(3 * kPageBytes, true, kAllSeals), "12288 bytes, 8192 are needed");
  refused_for(memfd(2 * kPageBytes, false, kAllSeals), "0 of its 8192 bytes are present");
  const UniqueFd holed = memfd(2 * kPageBytes, true, kAllSeals);
  ASSERT_EQ(fallocate(holed.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPageBytes), 0);
  refused_for(holed, "4096 of its 8192 bytes are present");
}

// Runs `child` in a forked process; it returns true for success. Fork comes before any stream: a child must not inherit threads.
class Child {
 public:
  explicit Child(const std::function<bool()>& child) : pid_(fork()) {
    if (pid_ == 0) _exit(child() ? 0 : 1);
  }
  bool Succeeded() {
    int status = 0;
    return waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
};

TEST_P(DeviceContract, ImportedMemoryIsTheSameMemoryInAnotherProcess) {
  constexpr uint64_t kBytes = 2 * kMiB;
  UniqueFd fd;
  auto memory = Create(kBytes, &fd);
  Child child([&] {
    auto device = GetParam().make();
    auto mine = device->Import(fd, kBytes);
    auto stream = device->OpenStream();
    if (!mine.ok() || !stream.ok()) return false;
    const std::string text = "written by the other process";
    (*stream)->Copy((*mine)->data() + kBytes - 100, text.data(), text.size() + 1);
    (*stream)->Synchronize((*stream)->Record());
    return true;
  });
  ASSERT_TRUE(child.Succeeded());
  std::vector<char> seen(100);
  auto stream = Open();
  stream->Copy(seen.data(), memory->data() + kBytes - 100, seen.size());
  stream->Synchronize(stream->Record());
  EXPECT_STREQ(seen.data(), "written by the other process");
}

TEST_P(DeviceContract, FlagsOrderStreamsOfTwoProcesses) {
  constexpr uint64_t kRounds = 200, kBlock = 64 * kKiB;
  UniqueFd fd;
  auto memory = Create(kPageBytes + kBlock, &fd);
  // One page with both flags, then the block that is handed to and fro; each side adds one to every byte, in its turn.
  const auto run = [&](Device* device, std::byte* base, bool first) {
    auto* flags = reinterpret_cast<Flag*>(base);
    auto opened = device->OpenStream();
    if (!opened.ok()) return false;
    Stream* stream = opened->get();
    std::vector<uint8_t> local(kBlock);
    for (uint64_t round = 0; round < kRounds; ++round) {
      stream->WaitFlag(&flags[first ? 1 : 0], first ? round : round + 1);
      stream->Copy(local.data(), base + kPageBytes, kBlock);
      stream->Synchronize(stream->Record());
      for (uint8_t& byte : local) ++byte;
      stream->Copy(base + kPageBytes, local.data(), kBlock);
      stream->WriteFlag(&flags[first ? 0 : 1], round + 1);
      stream->Synchronize(stream->Record());
    }
    return true;
  };
  Child child([&] {
    auto device = GetParam().make();
    auto mine = device->Import(fd, kPageBytes + kBlock);
    return mine.ok() && run(device.get(), (*mine)->data(), false);
  });
  EXPECT_TRUE(run(device_.get(), memory->data(), true));
  ASSERT_TRUE(child.Succeeded());
  const std::byte* block = memory->data() + kPageBytes;
  EXPECT_EQ(static_cast<uint64_t>(std::count(block, block + kBlock, static_cast<std::byte>(2 * kRounds))), kBlock);
}

TEST_P(DeviceContract, AWaiterOfADeadProcessIsFreedByPoison) {
  UniqueFd fd;
  auto memory = Create(kPageBytes, &fd);
  auto* flag = reinterpret_cast<Flag*>(memory->data());
  Child child([] { return true; });  // dies without ever writing its flag
  ASSERT_TRUE(child.Succeeded());
  auto stream = Open();
  stream->WaitFlag(flag, 1);
  const Stream::Marker marker = stream->Record();
  flag->store(kFlagPoison, std::memory_order_release);
  stream->Synchronize(marker);
  EXPECT_TRUE(stream->Passed(marker));
}

}  // namespace device_contract_test
}  // namespace tidepool::device
