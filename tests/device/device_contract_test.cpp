// The contract of device/device.h, which every form of Device must keep: the host's, CudaDevice on
// the stand-in for its driver and, where this file is compiled once more for that (label gpu),
// CudaDevice on a GPU.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "device/device.h"
#include "device/host/host_memory.h"
#include "tests/device/device_roles.h"
#include "tests/device/form_test.h"

namespace tidepool::device {
namespace device_contract_test {

class DeviceContract : public FormTest {};

INSTANTIATE_TEST_SUITE_P(Forms, DeviceContract, ::testing::ValuesIn(FormsToTest()), NameOfForm);

TEST_P(DeviceContract, CopyArrivesWhenItsMarkerHasPassed) {
  const auto from = Host<uint32_t>(1 << 20), to = Host<uint32_t>(1 << 20);
  std::iota(from.begin(), from.end(), 7u);
  std::byte* const block = Block(from.size_bytes());
  auto stream = Open();
  stream->Copy(block, from.data(), from.size_bytes());
  stream->Copy(to.data(), block, from.size_bytes());
  stream->Synchronize(stream->Record());
  EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin()));
  EXPECT_TRUE(stream->status().ok());
}

TEST_P(DeviceContract, EmptyCopyIsAllowed) {
  auto stream = Open();
  stream->Copy(nullptr, nullptr, 0);
  stream->Zero(nullptr, 0);
  const Stream::Marker marker = stream->Record();
  stream->Synchronize(marker);
  EXPECT_TRUE(stream->Passed(marker));
}

TEST_P(DeviceContract, ZeroesWhatItIsToldAndNothingBeside) {
  const std::vector<uint8_t> ones(100'003, 1);
  std::byte* const block = BlockOf(ones.data(), ones.size());
  const auto host = Host<uint8_t>(ones.size());
  std::fill(host.begin(), host.end(), uint8_t{1});
  auto stream = Open();
  for (std::byte* const base : {block, reinterpret_cast<std::byte*>(host.data())}) {
    stream->Zero(base + 7, 1);
    stream->Zero(base + 5'001, 90'001);
  }
  stream->Synchronize(stream->Record());
  std::vector<uint8_t> expected = ones;
  expected[7] = 0;
  std::fill_n(expected.begin() + 5'001, 90'001, uint8_t{0});
  EXPECT_EQ(Read<uint8_t>(block, ones.size()), expected);
  EXPECT_TRUE(std::equal(host.begin(), host.end(), expected.begin()));
}

TEST_P(DeviceContract, MarkersCountFromOneAndPassInOrder) {
  auto stream = Open();
  const auto from = Host<char>(100'000);
  std::byte* const block = Block(from.size());
  std::vector<Stream::Marker> markers;
  for (int i = 0; i < 10; ++i) {
    stream->Copy(block, from.data(), from.size());
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
  constexpr uint64_t kHops = 2'000, kWord = sizeof(uint64_t);
  const uint64_t word = 0x1234567890ABCDEF;
  const auto first = Host<uint64_t>(1);
  first[0] = word;
  std::byte* const cells = Block((kHops + 1) * kWord);
  auto stream = Open();
  stream->Copy(cells, first.data(), kWord);
  for (uint64_t i = 0; i < kHops; ++i)
    stream->Copy(cells + (i + 1) * kWord, cells + i * kWord, kWord);
  stream->Synchronize(stream->Record());
  EXPECT_EQ(Read<uint64_t>(cells, kHops + 1), std::vector<uint64_t>(kHops + 1, word));
}

TEST_P(DeviceContract, FlagIsWrittenOnlyAfterEarlierCopies) {
  const std::vector<char> content(8 * kMiB, 'a');
  std::byte* const block = BlockOf(content.data(), content.size());
  const auto to = Host<char>(content.size());
  Flag* const flag = NewFlag();
  auto stream = Open();
  stream->Copy(to.data(), block, to.size());
  stream->WriteFlag(flag, 5);
  ASSERT_TRUE(Drive(
      {stream.get()}, [&] { return flag->load(std::memory_order_acquire) == 5; }, 64 * kKiB));
  EXPECT_TRUE(std::equal(content.begin(), content.end(), to.begin()));
}

TEST_P(DeviceContract, WaitHoldsBackItsOwnStreamOnly) {
  Flag* const flag = NewFlag();
  const uint64_t one = 1;
  std::byte* const cell = BlockOf(&one, sizeof one);
  const auto seen = Host<uint64_t>(2);
  auto waiting = Open(), other = Open();
  waiting->WaitFlag(flag, 3);
  waiting->Copy(&seen[0], cell, sizeof one);
  const Stream::Marker held_marker = waiting->Record();
  other->Copy(&seen[1], cell, sizeof one);
  other->Synchronize(other->Record());
  EXPECT_EQ(seen[1], 1u);
  flag->store(2, std::memory_order_release);  // not enough
  Settle({waiting.get()});
  EXPECT_FALSE(waiting->Passed(held_marker));
  flag->store(3, std::memory_order_release);
  waiting->Synchronize(held_marker);
  EXPECT_EQ(seen[0], 1u);
}

TEST_P(DeviceContract, TwoStreamsHandWorkToEachOtherByFlags) {
  constexpr uint64_t kRounds = 500, kWord = sizeof(uint64_t);
  const uint64_t word = 42;
  std::byte* const cells = Block((2 * kRounds + 1) * kWord);
  const auto first = Host<uint64_t>(1);
  first[0] = word;
  Flag *const ping = NewFlag(), *const pong = NewFlag();
  auto a = Open(), b = Open();
  a->Copy(cells, first.data(), kWord);
  for (uint64_t i = 0; i < kRounds; ++i) {
    a->WaitFlag(pong, i);
    a->Copy(cells + (2 * i + 1) * kWord, cells + 2 * i * kWord, kWord);
    a->WriteFlag(ping, i + 1);
    b->WaitFlag(ping, i + 1);
    b->Copy(cells + (2 * i + 2) * kWord, cells + (2 * i + 1) * kWord, kWord);
    b->WriteFlag(pong, i + 1);
  }
  const Stream::Marker end = b->Record();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->Passed(end); }));
  EXPECT_EQ(Read<uint64_t>(cells, 2 * kRounds + 1), std::vector<uint64_t>(2 * kRounds + 1, word));
}

TEST_P(DeviceContract, WaitMarkerHoldsBackWhatComesLaterUntilTheOtherStreamIsThere) {
  constexpr uint64_t kWord = sizeof(uint64_t);
  const uint64_t word = 7;
  std::byte* const cells = Block(2 * kWord);
  const auto first = Host<uint64_t>(1);
  first[0] = word;
  Flag* const flag = NewFlag();
  auto a = Open(), b = Open();
  const Stream::Marker before = b->Record();
  a->WaitFlag(flag, 1);
  a->Copy(cells, first.data(), kWord);
  b->WaitMarker(a.get(), a->Record());
  b->Copy(cells + kWord, cells, kWord);
  const Stream::Marker end = b->Record();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->Passed(before); }))
      << "what came earlier is not held back";
  Settle({a.get(), b.get()});
  EXPECT_FALSE(b->Passed(end));
  flag->store(1, std::memory_order_release);
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->Passed(end); }));
  EXPECT_EQ(Read<uint64_t>(cells, 2), (std::vector<uint64_t>{word, word}));
}

TEST_P(DeviceContract, AMarkerThatHasPassedAndOneOfTheStreamItselfHoldNothingBack) {
  auto a = Open(), b = Open();
  const Stream::Marker passed = a->Record();
  a->Synchronize(passed);
  b->WaitMarker(a.get(), passed);
  b->WaitMarker(b.get(), b->Record());
  const Stream::Marker end = b->Record();
  EXPECT_TRUE(Drive({a.get(), b.get()}, [&] { return b->Passed(end); }));
}

TEST_P(DeviceContract, TwoStreamsHandWorkToEachOtherByMarkers) {
  constexpr uint64_t kRounds = 500, kWord = sizeof(uint64_t);
  const uint64_t word = 42;
  std::byte* const cells = Block((2 * kRounds + 1) * kWord);
  const auto first = Host<uint64_t>(1);
  first[0] = word;
  auto a = Open(), b = Open();
  a->Copy(cells, first.data(), kWord);
  for (uint64_t i = 0; i < kRounds; ++i) {
    a->Copy(cells + (2 * i + 1) * kWord, cells + 2 * i * kWord, kWord);
    b->WaitMarker(a.get(), a->Record());
    b->Copy(cells + (2 * i + 2) * kWord, cells + (2 * i + 1) * kWord, kWord);
    a->WaitMarker(b.get(), b->Record());
  }
  const Stream::Marker end = a->Record();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return a->Passed(end); }));
  EXPECT_EQ(Read<uint64_t>(cells, 2 * kRounds + 1), std::vector<uint64_t>(2 * kRounds + 1, word));
}

TEST_P(DeviceContract, FlagsCompareCyclically) {
  // Around 2^64 a small number is later than a great one.
  Flag* const flag = NewFlag(UINT64_MAX - 1);
  auto stream = Open();
  stream->WaitFlag(flag, UINT64_MAX - 2);  // reached already
  const Stream::Marker first = stream->Record();
  stream->WaitFlag(flag, 1);  // three ahead
  const Stream::Marker second = stream->Record();
  stream->Synchronize(first);
  Settle({stream.get()});
  EXPECT_FALSE(stream->Passed(second));
  flag->store(1, std::memory_order_release);
  stream->Synchronize(second);
  EXPECT_TRUE(stream->Passed(second));
}

TEST_P(DeviceContract, PoisonEndsEveryWait) {
  for (const uint64_t value : {uint64_t{1}, uint64_t{1} << 62, uint64_t{INT64_MAX}}) {
    Flag* const flag = NewFlag(value - 2);
    auto stream = Open();
    stream->WaitFlag(flag, value);
    const Stream::Marker marker = stream->Record();
    Settle({stream.get()});
    EXPECT_FALSE(stream->Passed(marker)) << value;
    flag->store(kFlagPoison, std::memory_order_release);
    stream->Synchronize(marker);
    EXPECT_TRUE(stream->Passed(marker)) << value;
  }
}

TEST_P(DeviceContract, ManySmallCopiesOnSeveralStreamsAllArrive) {
  constexpr size_t kStreams = 3, kCopies = 3'000, kBytes = 96;
  std::vector<std::span<uint8_t>> from, to;
  std::vector<std::byte*> blocks;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream::Marker> ends;
  SplitMix64 random(11);
  for (size_t s = 0; s < kStreams; ++s) {
    streams.push_back(Open());
    from.push_back(Host<uint8_t>(kCopies * kBytes));
    to.push_back(Host<uint8_t>(kCopies * kBytes));
    blocks.push_back(Block(kCopies * kBytes));
    for (uint8_t& byte : from[s]) byte = static_cast<uint8_t>(random.Next());
  }
  for (size_t i = 0; i < kCopies; ++i) {  // interleaved: every stream has work at the same time
    for (size_t s = 0; s < kStreams; ++s) {
      streams[s]->Copy(blocks[s] + i * kBytes, &from[s][i * kBytes], kBytes);
      streams[s]->Copy(&to[s][i * kBytes], blocks[s] + i * kBytes, kBytes);
    }
  }
  for (auto& stream : streams) ends.push_back(stream->Record());
  ASSERT_TRUE(Drive({streams[0].get(), streams[1].get(), streams[2].get()}, [&] {
    return streams[0]->Passed(ends[0]) && streams[1]->Passed(ends[1]) &&
           streams[2]->Passed(ends[2]);
  }));
  for (size_t s = 0; s < kStreams; ++s)
    EXPECT_TRUE(std::equal(from[s].begin(), from[s].end(), to[s].begin())) << s;
}

TEST_P(DeviceContract, RepeatedUseAfterAnIdleTimeWorks) {
  auto stream = Open();
  std::byte* const cell = Block(sizeof(uint64_t));
  const auto words = Host<uint64_t>(2);
  for (uint64_t round = 1; round <= 20; ++round) {
    words[0] = round;
    stream->Copy(cell, &words[0], sizeof round);
    stream->Copy(&words[1], cell, sizeof round);
    stream->Synchronize(stream->Record());
    EXPECT_EQ(words[1], round);
    SteadyClock().SleepNs(kNsPerMs / 5);  // long enough for a threaded form to fall asleep
  }
}

TEST_P(DeviceContract, EventTellsOfEveryPassedMarker) {
  auto stream = Open();
  const auto from = Host<char>(300'000);
  std::byte* const block = Block(from.size());
  for (int round = 0; round < 50; ++round) {
    stream->Copy(block, from.data(), from.size());
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

TEST_P(DeviceContract, ExportableMemoryIsZeroAndSealed) {
  constexpr uint64_t kBytes = 3 * kMiB + 5;
  UniqueFd fd;
  auto memory = Create(kBytes, &fd);
  ASSERT_EQ(memory->bytes(), kBytes);
  ASSERT_TRUE(fd.valid());
  EXPECT_NE(memory->is_host(), GetParam().gpu);
  EXPECT_EQ(Read<uint8_t>(memory->data(), kBytes), std::vector<uint8_t>(kBytes, 0));
  EXPECT_NE(ftruncate(fd.get(), 0), 0) << "the file could be shrunk under its users";
  EXPECT_NE(ftruncate(fd.get(), 1 << 30), 0) << "the file could be grown";
  EXPECT_EQ(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_P(DeviceContract, BadSizesAndDescriptorsAreErrors) {
  UniqueFd fd;
  EXPECT_FALSE(device_->CreateExportable(0, &fd).ok());
  EXPECT_FALSE(device_->CreateExportable(uint64_t{1} << 50, &fd).ok());
  auto memory = Create(kSharedBytes, &fd);
  EXPECT_EQ(device_->Import(fd, 0).status().id(), ErrorId::kMemoryMapFailed);
  EXPECT_EQ(device_->Import(fd, kSharedBytes + 1).status().id(), ErrorId::kHandshakeBad)
      << "shorter than asked";
  EXPECT_EQ(device_->Import(UniqueFd(), kSharedBytes).status().id(), ErrorId::kHandshakeBad);
}

TEST_P(DeviceContract, ImportedMemoryIsTheSameMemoryInAnotherProcess) {
  UniqueFd fd;
  auto memory = Create(kSharedBytes, &fd);
  Peer peer(GetParam().name, "write", {fd.get()});
  ASSERT_TRUE(peer.Succeeded());
  EXPECT_STREQ(Read<char>(memory->data() + kSharedBytes - kPageBytes, kPageBytes).data(),
               kPeerText);
}

TEST_P(DeviceContract, FlagsOrderStreamsOfTwoProcesses) {
  UniqueFd fd, flags_fd;
  auto block = Create(kBlockBytes, &fd);
  auto flags = HostMemory::Create(kPageBytes, &flags_fd);
  ASSERT_TRUE(flags.ok());
  auto registration = device_->Register((*flags)->data(), kPageBytes);
  ASSERT_TRUE(registration.ok()) << registration.status().Format();
  Peer peer(GetParam().name, "pass", {fd.get(), flags_fd.get()});
  const Status status = PassBlock(device_.get(), block->data(), (*flags)->data(), true);
  EXPECT_TRUE(status.ok()) << status.Format();
  ASSERT_TRUE(peer.Succeeded());
  EXPECT_EQ(Read<uint8_t>(block->data(), kBlockBytes),
            std::vector<uint8_t>(kBlockBytes, static_cast<uint8_t>(2 * kPassRounds)));
}

TEST_P(DeviceContract, AWaiterOfADeadProcessIsFreedByPoison) {
  Flag* const flag = NewFlag();
  auto stream = Open();
  stream->WaitFlag(flag, 1);  // whoever should write it never does
  const Stream::Marker marker = stream->Record();
  EXPECT_FALSE(stream->Passed(marker));
  flag->store(kFlagPoison, std::memory_order_release);
  stream->Synchronize(marker);
  EXPECT_TRUE(stream->Passed(marker));
}

}  // namespace device_contract_test
}  // namespace tidepool::device
