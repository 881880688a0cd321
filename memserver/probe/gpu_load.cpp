#include "memserver/probe/gpu_load.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include "device/cuda/cuda_device.h"
#include "memserver/keeper/session_spawn.h"

namespace tidepool::memserver {
namespace {

// Time until its context is made and its first kernels run.
constexpr int64_t kLoadStartNs = 10 * kNsPerSecond;
constexpr int64_t kLoadEndNs = 2 * kNsPerSecond;
constexpr char kRuns = 'r';
constexpr size_t kKernelsAhead = 4;

// Every thread waits by the GPU's clock until the given number of nanoseconds has passed. PTX, so
// that no compiler is needed.
constexpr char kLoadCode[] = R"(
.version 6.0
.target sm_70
.address_size 64
.visible .entry tidepool_gpu_load(.param .align 8 .b8 arguments[8])
{
  .reg .b64 %limit, %begin, %now, %passed;
  .reg .pred %more;
  ld.param.u64 %limit, [arguments];
  mov.u64 %begin, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %passed, %now, %begin;
  setp.lt.u64 %more, %passed, %limit;
  @%more bra again;
  ret;
}
)";
const device::KernelImage kLoadImage = {.data = kLoadCode, .without = ""};

struct LoadArguments {
  uint64_t ns = 0;
};
const device::Kernel kLoad = {.name = "tidepool_gpu_load",
                              .image = &kLoadImage,
                              .argument_bytes = sizeof(LoadArguments),
                              .threads = 256,
                              .items_a_thread = 1,
                              .host = [](const std::byte*, uint64_t, uint64_t) {},
                              .item_bytes = 1};
constexpr uint64_t kLoadItems = uint64_t{1} << 24;  // more threads than a GPU holds at once

bool WaitReadable(int fd, int64_t ns) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(ns / kNsPerMs)) > 0;
}

Result<device::GpuUuid> FindGpu(const std::string& text) {
  TP_ASSIGN_OR_RETURN(const std::vector<device::Gpu> gpus, device::ListGpus());
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&text](const device::Gpu& gpu) {
    return device::Text(gpu.uuid) == text;
  });
  if (found == gpus.end()) return Status(ErrorId::kCudaUnavailable, "there is no GPU " + text);
  return found->uuid;
}

Status KeepBusy(const std::string& uuid, int socket, const Clock& clock) {
  TP_ASSIGN_OR_RETURN(const device::GpuUuid gpu, FindGpu(uuid));
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<device::CudaDevice> device,
                      device::CudaDevice::OpenByUuid(gpu));
  TP_RETURN_IF_ERROR(device->Prepare(kLoad));
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<device::Stream> stream, device->OpenStream());

  const int64_t end = clock.NowNs() + kGpuLoadNsMax;
  const LoadArguments arguments{.ns = static_cast<uint64_t>(kLoadKernelNs)};
  std::array<device::Stream::Marker, kKernelsAhead> marks{};
  for (size_t i = 0; clock.NowNs() < end && stream->status().ok(); ++i) {
    stream->Synchronize(marks[i % kKernelsAhead]);
    // The first one has ended, and the next ones are queued.
    if (i == kKernelsAhead && send(socket, &kRuns, 1, MSG_NOSIGNAL) != 1) break;
    if (i > kKernelsAhead && WaitReadable(socket, 0)) break;  // closed: nothing is ever sent
    stream->Launch(kLoad, &arguments, kLoadItems);
    marks[i % kKernelsAhead] = stream->Record();
  }
  return stream->status();
}

}  // namespace

Result<GpuLoad> GpuLoad::Start(const device::GpuUuid& gpu) {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
    return Status(ErrorId::kKeeperFailed, "no socket for a process that keeps a GPU busy")
        .Why(std::strerror(errno));
  UniqueFd ours(pair[0]), theirs(pair[1]);

  SessionCommand command;
  command.program = OwnCommand().front();
  command.argv = {command.program, "gpu-load", device::Text(gpu)};
  command.environment = EnvironmentFor(/*again=*/true);
  command.inherited_fd = theirs.get();
  TP_ASSIGN_OR_RETURN(const pid_t pid, SpawnSession(command));
  theirs.Reset();

  GpuLoad load(pid, std::move(ours));
  char said = 0;
  if (WaitReadable(load.socket_.get(), kLoadStartNs) &&
      recv(load.socket_.get(), &said, 1, MSG_DONTWAIT) == 1 && said == kRuns)
    return load;
  return Status(ErrorId::kCudaUnavailable, "a second process could not keep the GPU busy");
}

GpuLoad::~GpuLoad() {
  if (!socket_.valid()) return;
  socket_.Reset();
  const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!ended.valid() || !WaitReadable(ended.get(), kLoadEndNs)) kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, ended.valid() && WaitReadable(ended.get(), kLoadEndNs) ? 0 : WNOHANG);
}

int RunGpuLoad(const std::string& uuid, const Clock& clock) {
  IsolateProcess("tp-gpu-load", kInheritedFd);
  return KeepBusy(uuid, kInheritedFd, clock).exit_code();
}

}  // namespace tidepool::memserver
