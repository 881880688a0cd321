#include "base/system/system_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/system/give_back.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace tidepool {
namespace system_memory_test {

// A made-up /proc and /sys/fs/cgroup in a temporary folder.
class SystemMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/system_memory.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    Write(
        "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  MemoryBudget Read() { return ReadMemoryBudget(root_ + "/proc", root_ + "/cgroup"); }

  std::string root_;
};

TEST_F(SystemMemory, WithoutGroupsTheMachineCounts) {
  const MemoryBudget budget = Read();
  EXPECT_EQ(budget.bytes_total, 16 * kGiB);
  EXPECT_EQ(budget.bytes_available, 8 * kGiB);
  EXPECT_EQ(budget.limited_by, "MemAvailable");
}

TEST_F(SystemMemory, AGroupWithoutALimitChangesNothing) {
  Write("proc/self/cgroup", "0::/user.slice\n");
  Write("cgroup/user.slice/memory.max", "max\n");
  Write("cgroup/user.slice/memory.current", "1000\n");
  EXPECT_EQ(Read().bytes_available, 8 * kGiB);
}

TEST_F(SystemMemory, ALimitOfVersion2Counts) {
  Write("proc/self/cgroup", "0::/user.slice/job\n");
  Write("cgroup/user.slice/job/memory.max", std::to_string(2 * kGiB));
  Write("cgroup/user.slice/job/memory.current", std::to_string(kGiB / 2));
  const MemoryBudget budget = Read();
  EXPECT_EQ(budget.bytes_total, 2 * kGiB);
  EXPECT_EQ(budget.bytes_available, 3 * kGiB / 2);
  EXPECT_EQ(budget.limited_by, root_ + "/cgroup/user.slice/job/memory.max");
}

TEST_F(SystemMemory, TheLeastLimitOnTheWayToTheRootCounts) {
  Write("proc/self/cgroup", "0::/outer/inner\n");
  Write("cgroup/outer/inner/memory.max", std::to_string(4 * kGiB));
  Write("cgroup/outer/inner/memory.current", "0");
  Write("cgroup/outer/memory.max", std::to_string(3 * kGiB));
  Write("cgroup/outer/memory.current", std::to_string(2 * kGiB));
  const MemoryBudget budget = Read();
  EXPECT_EQ(budget.bytes_available, kGiB);
  EXPECT_EQ(budget.bytes_total, 3 * kGiB);
  EXPECT_EQ(budget.limited_by, root_ + "/cgroup/outer/memory.max");
}

TEST_F(SystemMemory, InAContainerTheRootOfTheHierarchyHasTheLimit) {
  Write("proc/self/cgroup", "0::/\n");
  Write("cgroup/memory.max", std::to_string(kGiB));
  Write("cgroup/memory.current", "0");
  EXPECT_EQ(Read().bytes_available, kGiB);
}

TEST_F(SystemMemory, PageCacheOfTheGroupIsNotUsedUp) {
  Write("proc/self/cgroup", "0::/job\n");
  Write("cgroup/job/memory.max", std::to_string(4 * kGiB));
  Write("cgroup/job/memory.current", std::to_string(4 * kGiB));
  Write("cgroup/job/memory.stat", "anon " + std::to_string(kGiB) + "\ninactive_file " +
                                      std::to_string(2 * kGiB) + "\nactive_file " +
                                      std::to_string(kGiB) + "\n");
  EXPECT_EQ(Read().bytes_available, 3 * kGiB);
}

TEST_F(SystemMemory, ALimitOfVersion1CountsAndItsNoLimitDoesNot) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n");
  Write("cgroup/memory/docker/abc/memory.limit_in_bytes", std::to_string(2 * kGiB));
  Write("cgroup/memory/docker/abc/memory.usage_in_bytes", std::to_string(kGiB));
  Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("cgroup/memory/memory.usage_in_bytes", "5");
  EXPECT_EQ(Read().bytes_available, kGiB);
}

TEST_F(SystemMemory, MoreUsedThanAllowedLeavesNothing) {
  Write("proc/self/cgroup", "0::/job\n");
  Write("cgroup/job/memory.max", "1000");
  Write("cgroup/job/memory.current", "2000");
  EXPECT_EQ(Read().bytes_available, 0U);
}

TEST(SystemMemoryHere, ThisMachineHasSome) {
  const MemoryBudget budget = ReadMemoryBudget();
  EXPECT_GT(budget.bytes_available, kMiB);
  EXPECT_GE(budget.bytes_total, budget.bytes_available);
}

TEST(GiveBackPages, FreesWhatIsMappedAndKeepsTheRest) {
  constexpr uint64_t kPage = 4096, kPages = 8;
  const UniqueFd fd(memfd_create("give-back", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), kPages * kPage), 0);
  void* const data = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(data, MAP_FAILED);
  auto* const bytes = static_cast<char*>(data);
  std::memset(bytes, 7, kPages * kPage);
  const auto blocks = [&fd] {
    struct stat now {};
    EXPECT_EQ(fstat(fd.get(), &now), 0);
    return static_cast<uint64_t>(now.st_blocks) * 512;
  };
  const uint64_t all = blocks();
  EXPECT_TRUE(GiveBackPages(bytes + 2 * kPage, 3 * kPage));
  EXPECT_EQ(blocks(), all - 3 * kPage);
  EXPECT_EQ(bytes[2 * kPage - 1], 7);
  EXPECT_EQ(bytes[2 * kPage], 0);
  EXPECT_EQ(bytes[5 * kPage], 7);
  munmap(data, kPages * kPage);

  std::vector<char> own(3 * kPage);
  void* const page =
      reinterpret_cast<void*>(RoundUp(reinterpret_cast<uintptr_t>(own.data()), kPage));
  EXPECT_FALSE(GiveBackPages(page, kPage)) << "memory of this process alone";
}

}  // namespace system_memory_test
}  // namespace tidepool
