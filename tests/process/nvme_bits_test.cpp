// A whole daemon whose states lie on NVMe, as threads of one process: the same weights and the same
// saved bytes as on the host.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/units.h"
#include "memserver/probe/bench_drive.h"
#include "memserver/traffic/nvme_tier.h"
#include "nvme/drive_profile.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"
#include "tests/nvme/scratch_directory.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace nvme_bits_test {

// What a run ends with: the weights as trainers see them, and the master as it is saved.
struct Trained {
  uint64_t hash = 0;
  std::string saved;
  friend bool operator==(const Trained&, const Trained&) = default;
};

// Chunks of two pieces; more pieces than one job gets staging.
#ifdef TIDEPOOL_SANITIZED
constexpr uint32_t kChunks = 7, kSteps = 2;
#else
constexpr uint32_t kChunks = 14, kSteps = 3;
#endif
ThinOptions JobOf(DType dtype) {
  ThinOptions options;
  options.name = "large";
  options.dtype = dtype;
  options.chunks = kChunks;
  options.chunk_elements = 262'144 + 16'384;
  options.steps = kSteps;
  return options;
}

std::string FileIn(const std::string& directory) {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return text;
}

Trained Train(const memserver::ServerOptions& server, ThinOptions job) {
  const DaemonInProcess daemon(server);
  const TemporaryDirectory saved;
  job.socket_dir = daemon.socket_dir();
  job.save_dir = saved.path();
  int64_t nvme_bytes = -1, pool_bytes = -1;
  job.after_step = [&](uint64_t) {
    const std::string status = AskAdmin(daemon.socket_dir(), "/v1/status");
    nvme_bytes = NumberIn(status.substr(status.find("\"nvme\":")), "bytes_used");
    pool_bytes = NumberIn(status.substr(status.find("\"pool\":")), "bytes_used");
  };
  const auto result = RunThinJob(job);
  EXPECT_TRUE(result.ok()) << result.status().Format();
  EXPECT_LE(pool_bytes, static_cast<int64_t>(server.pool_bytes));
  EXPECT_EQ(nvme_bytes > 0, !server.settings.nvme.directories.empty())
      << "bytes on NVMe: " << nvme_bytes;
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, 5 * kNsPerSecond), kNothing);
  return result.ok() ? Trained{result.value().hash, FileIn(saved.path())} : Trained{};
}

class NvmeBits : public ::testing::TestWithParam<DType> {
 protected:
  memserver::ServerOptions OnNvme(uint32_t directories, uint64_t pool_bytes) const {
    memserver::ServerOptions options = DaemonInProcess::SmallServer();
    options.pool_bytes = pool_bytes;
    for (uint32_t i = 0; i < directories; ++i)
      options.settings.nvme.directories.push_back({nvme_[i].path(), 128 * kMiB});
    return options;
  }

  const ThinOptions job_ = JobOf(GetParam());
  const uint64_t all_bytes_ = shm::StateBytesOf(SpecOf(job_)).total();
  // With all weights on the host; and what no way of spilling takes off it.
  const uint64_t with_weights_bytes_ = shm::HostStateBytesOf(SpecOf(job_), 0).total();
  const uint64_t least_bytes_ = shm::LeastHostBytesOf(SpecOf(job_));
  nvme::ScratchDirectory nvme_[2];
};

TEST_P(NvmeBits, AreThoseOfAPoolThatHoldsEverything) {
  memserver::ServerOptions host = DaemonInProcess::SmallServer();
  host.pool_bytes = all_bytes_;
  const Trained expected = Train(host, job_);
  ASSERT_GT(expected.saved.size(), job_.chunks * job_.chunk_elements * sizeof(float));
  const uint64_t third = std::max(RoundUp(all_bytes_ / 3, kPageBytes), with_weights_bytes_);
  EXPECT_EQ(Train(OnNvme(1, third), job_), expected) << "one directory, and a third of the pool";
  EXPECT_EQ(Train(OnNvme(2, third), job_), expected) << "two directories";
  memserver::ServerOptions threads = OnNvme(1, third);
  threads.settings.nvme.allow_uring = false;
  EXPECT_EQ(Train(threads, job_), expected) << "threads instead of io_uring";
  EXPECT_EQ(Train(OnNvme(1, with_weights_bytes_), job_), expected)
      << "the smallest pool that has all weights";
  if (least_bytes_ == with_weights_bytes_) return;
  EXPECT_EQ(Train(OnNvme(2, least_bytes_), job_), expected)
      << "the smallest pool: a window of two slots, two directories";
  threads.pool_bytes = least_bytes_;
  EXPECT_EQ(Train(threads, job_), expected) << "the same, threads";
}

TEST_P(NvmeBits, APageLessThanTheSmallestPoolIsRefusedAtTheStartOfTheJob) {
  const DaemonInProcess daemon(OnNvme(1, least_bytes_ - kPageBytes));
  ThinOptions job = job_;
  job.socket_dir = daemon.socket_dir();
  const auto result = RunThinJob(job);
  EXPECT_EQ(result.status().id(), ErrorId::kPoolFull) << result.status().Format();
}

TEST(BenchDrive, MeasuresEachPairOnTheDirectoryAndWritesTheBestIntoTheProfileThatMemserverUses) {
  SteadyClock clock;
  const nvme::ScratchDirectory directory, plain;
  const auto report = memserver::BenchDrive({.directory = directory.path(), .run_ns = 1}, &clock);
  ASSERT_TRUE(report.ok()) << report.status().Format();
  EXPECT_NE(report.value().find("\n4.00 MiB"), std::string::npos) << report.value();
  std::ifstream file(directory.path() + "/profile");
  const auto profile =
      nvme::ParseProfile({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
  ASSERT_TRUE(profile.has_value());
  const std::string setting = "--nvme-block " + std::to_string(profile->block_bytes / kKiB) +
                              "KiB --nvme-depth " + std::to_string(profile->depth);
  EXPECT_NE(report.value().find("\nuse: " + setting + "\n"), std::string::npos) << report.value();
  const auto entries = std::filesystem::directory_iterator(directory.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "nothing else is left there";
  EXPECT_EQ(memserver::BenchDrive({.directory = directory.path() + "/none"}, &clock).status().id(),
            ErrorId::kNvmeDirectoryBad);

  ASSERT_TRUE(nvme::WriteProfile(directory.path(), {.block_bytes = 256 * kKiB, .depth = 24}).ok());
  const auto depth = [&clock](const memserver::NvmeOptions& options) {
    const auto tier = memserver::OpenNvmeTier(options, &clock);
    return tier.ok() ? tier.value()->queue->depth() : 0;
  };
  memserver::NvmeOptions options;
  options.directories = {{plain.path(), kMiB}};
  EXPECT_EQ(depth(options), memserver::kDepthDefault) << "no profile";
  options.directories.push_back({directory.path(), kMiB});
  EXPECT_EQ(depth(options), 2 * 24u) << "of each drive";
  options.depth = 8;
  EXPECT_EQ(depth(options), 2 * 8u) << "a setting goes before the profile";
}

// A bf16 job has 4 of its 16 bytes a parameter on the host in the end, so a third of its pool is
// enough; an fp32 job 8.
#ifdef TIDEPOOL_SANITIZED
INSTANTIATE_TEST_SUITE_P(Types, NvmeBits, ::testing::Values(DType::kBF16));
#else
INSTANTIATE_TEST_SUITE_P(Types, NvmeBits, ::testing::Values(DType::kBF16, DType::kF32));
#endif

}  // namespace nvme_bits_test
}  // namespace tidepool::testing
