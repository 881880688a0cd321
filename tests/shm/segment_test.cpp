#include "shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "base/unique_fd.h"

namespace tidepool::shm {
namespace segment_test {

TEST(Segment, SizeIsRoundedUpToPagesAndBytesAreZero) {
  auto made = Segment::Create("test", 5000, PeerAccess::kReadWrite);
  ASSERT_TRUE(made.ok()) << made.status().Format();
  const Segment& segment = *made.value();
  EXPECT_EQ(segment.bytes(), 8192U);
  for (uint64_t i = 0; i < segment.bytes(); ++i) ASSERT_EQ(segment.data()[i], std::byte{0});
}

TEST(Segment, BothSidesSeeTheSameBytes) {
  auto server = Segment::Create("test", 4096, PeerAccess::kReadWrite);
  ASSERT_TRUE(server.ok());
  auto client = Segment::Map(Duplicate(server.value()->fd()), 4096, PeerAccess::kReadWrite);
  ASSERT_TRUE(client.ok()) << client.status().Format();
  std::memcpy(server.value()->data(), "tide", 4);
  EXPECT_EQ(std::memcmp(client.value()->data(), "tide", 4), 0);
  EXPECT_NE(client.value()->data(), server.value()->data());
}

TEST(Segment, NobodyCanResizeIt) {
  auto made = Segment::Create("test", 8192, PeerAccess::kReadWrite);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(ftruncate(made.value()->fd(), 0), 0);
  EXPECT_NE(ftruncate(made.value()->fd(), 1 << 20), 0);
  EXPECT_NE(fcntl(made.value()->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0)
      << "the set of seals must be sealed itself";
}

TEST(Segment, AReadOnlyPeerCanNeitherMapForWritingNorPunchHolesNorWrite) {
  auto made = Segment::Create("test", 8192, PeerAccess::kReadOnly);
  ASSERT_TRUE(made.ok());
  made.value()->data()[0] = std::byte{7};
  const int fd = made.value()->fd();
  EXPECT_EQ(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
  auto peer = Segment::Map(Duplicate(fd), 8192, PeerAccess::kReadOnly);
  ASSERT_TRUE(peer.ok()) << peer.status().Format();
  EXPECT_EQ(peer.value()->data()[0], std::byte{7});
}

TEST(Segment, MemoryOfAnotherSizeOrWithoutSealsIsRefused) {
  auto made = Segment::Create("test", 8192, PeerAccess::kReadWrite);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(Segment::Map(Duplicate(made.value()->fd()), 4096, PeerAccess::kReadWrite).status().id(),
            ErrorId::kHandshakeBad);
  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(Segment::Map(std::move(unsealed), 8192, PeerAccess::kReadWrite).status().id(),
            ErrorId::kHandshakeBad);
  EXPECT_EQ(Segment::Map(UniqueFd(open("/", O_RDONLY | O_CLOEXEC)), 8192, PeerAccess::kReadWrite)
                .status()
                .id(),
            ErrorId::kHandshakeBad);
  EXPECT_EQ(Segment::Map(UniqueFd(), 8192, PeerAccess::kReadWrite).status().id(),
            ErrorId::kHandshakeBad);
}

TEST(Segment, MoreMemoryThanTheAddressSpaceIsAnErrorWithTheSize) {
  const auto made = Segment::Create("huge", uint64_t{1} << 60, PeerAccess::kReadWrite);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().id(), ErrorId::kMemoryMapFailed);
  EXPECT_NE(made.status().Format().find("'huge'"), std::string::npos) << made.status().Format();
}

TEST(Segment, AForkedChildDoesNotInheritTheMapping) {
  auto made = Segment::Create("test", 4096, PeerAccess::kReadWrite);
  ASSERT_TRUE(made.ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    unsigned char resident = 0;
    const bool unmapped = mincore(made.value()->data(), 4096, &resident) != 0;
    _exit(unmapped ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

TEST(Segment, NothingStaysInTheSharedMemoryFileSystem) {
  auto made = Segment::Create("tidepool-look", 4096, PeerAccess::kReadWrite);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(access("/dev/shm/tidepool-look", F_OK), 0);
}

}  // namespace segment_test
}  // namespace tidepool::shm
