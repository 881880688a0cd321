// What HostDevice promises beyond the contract of device/device.h, in each of its forms.
#include "device/host/host_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "tests/device/device_forms.h"

namespace tidepool::device {
namespace host_device_test {

class HostDeviceForms : public ::testing::TestWithParam<Form> {
 protected:
  std::unique_ptr<Stream> Open() { return std::move(device_->OpenStream()).value(); }

  std::unique_ptr<Device> device_ = std::move(GetParam().open()).value();
};

INSTANTIATE_TEST_SUITE_P(Forms, HostDeviceForms, ::testing::ValuesIn(HostForms()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(HostDeviceForms, ProgressIsBoundedAndResumesInsideACopy) {
  constexpr uint64_t kBytes = 10 * kMiB;
  std::vector<char> from(kBytes, 'p'), to(kBytes, 0);
  auto stream = Open();
  if (stream->event_fd() >= 0) {
    EXPECT_FALSE(stream->Progress(kMiB))
        << "a form with its own thread does nothing on the caller's";
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

// Counts what it is given: items, and the longest piece.
struct PieceCounts {
  std::vector<uint64_t>* pieces;  // begin and length of each
};
constexpr KernelImage kNoImage = {};
constexpr Kernel kCountPieces = {
    .name = "count_pieces",
    .image = &kNoImage,
    .argument_bytes = sizeof(PieceCounts),
    .threads = 32,
    .items_a_thread = 4,
    .host =
        [](const std::byte* arguments, uint64_t first, uint64_t count) {
          PieceCounts counts{};
          std::memcpy(&counts, arguments, sizeof counts);
          counts.pieces->insert(counts.pieces->end(), {first, count});
        },
    .item_bytes = 10};

TEST_P(HostDeviceForms, AKernelIsDoneInBoundedPiecesEachItemOnce) {
  constexpr uint64_t kItems = 1'000'003;
  std::vector<uint64_t> pieces;
  auto stream = Open();
  const PieceCounts counts{&pieces};
  EXPECT_TRUE(device_->Prepare(kCountPieces).ok());
  stream->Launch(kCountPieces, &counts, 0);
  stream->Launch(kCountPieces, &counts, kItems);
  const Stream::Marker marker = stream->Record();
  if (stream->event_fd() >= 0) {
    stream->Synchronize(marker);
  } else {
    while (!stream->Passed(marker)) ASSERT_TRUE(stream->Progress(100'000));
    EXPECT_GE(pieces.size() / 2, kItems * 10 / 100'000);
  }
  uint64_t next = 0;
  for (size_t i = 0; i < pieces.size(); i += 2) {
    EXPECT_EQ(pieces[i], next);
    EXPECT_EQ(pieces[i] % 4, 0U);
    EXPECT_LE(pieces[i + 1], stream->event_fd() < 0 ? 100'000U / 10 : kItems);
    next += pieces[i + 1];
  }
  EXPECT_EQ(next, kItems);
}

TEST_P(HostDeviceForms, ClosingAStreamDropsBlockedWork) {
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

TEST_P(HostDeviceForms, PoisonEndsWaitsForEveryValue) {
  for (const uint64_t value : {uint64_t{1} << 63, UINT64_MAX}) {
    Flag flag{value - 2};
    auto stream = Open();
    stream->WaitFlag(&flag, value);
    const Stream::Marker marker = stream->Record();
    stream->Progress(kMiB);
    EXPECT_FALSE(stream->Passed(marker)) << value;
    flag.store(kFlagPoison, std::memory_order_release);
    stream->Synchronize(marker);
    EXPECT_TRUE(stream->Passed(marker)) << value;
  }
}

// A peer may send any descriptor: only memory whose faults the kernel alone serves may be mapped.
TEST_P(HostDeviceForms, OnlyMemoryThatADeviceMadeIsImported) {
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
  EXPECT_TRUE(device_->Import(memfd(2 * kPageBytes, true, kAllSeals), 2 * kPageBytes - 5).ok())
      << "the twin of what a device makes";
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

}  // namespace host_device_test
}  // namespace tidepool::device
