// Ranks that bring their rCache, as memory of a GPU is brought; the GPU is a host device with
// streams of its own, in one process with the daemon. (The same over processes and the CUDA
// driver's stand-in: gpu_test.cpp.)
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "client/mem_client.h"
#include "device/host/host_device.h"
#include "tests/fakes/real_clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace brought_rcache_test {

constexpr int64_t kLimitNs = 5 * kNsPerSecond;
constexpr device::GpuUuid kUuid = {0xaa, 1, 2, 3};

device::Gpu StandIn(const device::GpuUuid& uuid = kUuid) {
  device::Gpu gpu;
  gpu.uuid = uuid;
  gpu.name = "stand-in";
  return gpu;
}

memserver::OpenedGpu OpenStandIn() {
  memserver::OpenedGpu opened;
  opened.device = std::make_unique<device::HostDevice>(
      device::HostDeviceOptions{.clock = RealClock(), .copy_threads = 1});
  return opened;
}

// As a rank brings it, without the rest of a rank.
class OpenedGpuMemory {
 public:
  explicit OpenedGpuMemory(uint64_t bytes) : gpu_(OpenStandIn()) {
    memory_ = std::move(gpu_.device->CreateExportable(bytes, &exported_)).value();
  }
  client::BroughtMemory brought() const {
    constexpr uint64_t kClaimed = kMiB;
    return {.form = 1,
            .uuid = kUuid,
            .descriptor = exported_.get(),
            .data = memory_->data(),
            .bytes = kClaimed};
  }

 private:
  memserver::OpenedGpu gpu_;
  UniqueFd exported_;
  std::unique_ptr<device::Memory> memory_;
};

memserver::ServerOptions ServerWithGpu() {
  memserver::ServerOptions options = DaemonInProcess::SmallServer();
  options.gpus.list = [] { return Result<std::vector<device::Gpu>>(std::vector{StandIn()}); };
  options.gpus.open = [](const device::Gpu&) {
    return Result<memserver::OpenedGpu>(OpenStandIn());
  };
  return options;
}

ThinOptions OnHost(const DaemonInProcess& daemon, const std::string& name) {
  ThinOptions options;
  options.socket_dir = daemon.socket_dir();
  options.name = name;
  return options;
}

ThinOptions OnGpu(const DaemonInProcess& daemon, const std::string& name,
                  const device::GpuUuid& uuid = kUuid) {
  ThinOptions options = OnHost(daemon, name);
  options.gpu = [uuid] {
    return Result<ThinGpu>(ThinGpu{OpenStandIn().device, uuid, device::ExportForm::kVmm});
  };
  return options;
}

TEST(BroughtRcache, AJobHasTheSameBitsAsOnTheHost) {
  const DaemonInProcess daemon(ServerWithGpu());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ThinOptions host = OnHost(daemon, "host"), gpu = OnGpu(daemon, "gpu");
    host.dtype = gpu.dtype = dtype;
    host.micro_batches = gpu.micro_batches = 2;
    const auto on_host = RunThinJob(host), on_gpu = RunThinJob(gpu);
    ASSERT_TRUE(on_host.ok()) << on_host.status().Format();
    ASSERT_TRUE(on_gpu.ok()) << on_gpu.status().Format();
    EXPECT_EQ(on_gpu.value().hash, on_host.value().hash);
  }
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, kLimitNs), kNothing);
}

// What a client hears that brings this.
Status HeardBy(const DaemonInProcess& daemon, const client::BroughtMemory& brought) {
  client::ClientOptions options;
  options.clock = RealClock();
  options.socket_dir = daemon.socket_dir();
  options.brought = brought;
  return client::MemClient::Connect(options, SpecOf(OnHost(daemon, "liar")), 0).status();
}

TEST(BroughtRcache, AServerWithoutThatGpuSaysWhichItHas) {
  const DaemonInProcess daemon(ServerWithGpu());
  const Status unknown = RunThinJob(OnGpu(daemon, "x", {9, 9})).status();
  EXPECT_EQ(unknown.id(), ErrorId::kCudaUnavailable);
  EXPECT_NE(unknown.what().find(device::Text(device::GpuUuid{9, 9})), std::string::npos)
      << unknown.Format();
  EXPECT_NE(unknown.why().find("stand-in (" + device::Text(kUuid)), std::string::npos)
      << unknown.Format();
  const DaemonInProcess none;
  const Status refused = RunThinJob(OnGpu(none, "x")).status();
  EXPECT_EQ(refused.id(), ErrorId::kCudaUnavailable);
  EXPECT_NE(refused.why().find("--gpu none"), std::string::npos) << refused.Format();
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, kLimitNs), kNothing);
}

TEST(BroughtRcache, LiarsAreRefusedByNameAndLeaveNothing) {
  const DaemonInProcess daemon(ServerWithGpu());
  ASSERT_TRUE(RunThinJob(OnGpu(daemon, "first")).ok());  // opens the GPU
  ASSERT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, kLimitNs), kNothing);
  const size_t before = SettledDescriptors();
  {
    const OpenedGpuMemory sound(SpecOf(OnHost(daemon, "liar")).rcache_bytes), small(kPageBytes);
    const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC)),
        loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    client::BroughtMemory brought = sound.brought();
    brought.form = 2;
    EXPECT_EQ(HeardBy(daemon, brought).id(), ErrorId::kHandshakeBad)
        << "another form than announced";
    brought = sound.brought();
    for (const int other : {null.get(), loose.get(), small.brought().descriptor}) {
      brought.descriptor = other;
      EXPECT_EQ(HeardBy(daemon, brought).id(), ErrorId::kHandshakeBad)
          << "another thing, or too small";
    }
    ASSERT_EQ(ftruncate(loose.get(), static_cast<off_t>(brought.bytes)), 0);
    brought.descriptor = loose.get();
    EXPECT_EQ(HeardBy(daemon, brought).id(), ErrorId::kHandshakeBad)
        << "whoever can shrink it could end the server";
  }
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, kLimitNs), kNothing);
  EXPECT_EQ(SettledDescriptors(), before);
  EXPECT_TRUE(RunThinJob(OnGpu(daemon, "honest")).ok());
}

}  // namespace brought_rcache_test
}  // namespace tidepool::testing
