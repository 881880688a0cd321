// GpuLoad: a process that keeps a GPU busy with kernels while this one measures the effect
// (done_probe.h); RunGpuLoad is that process.
//
// One thread. The process is this program, executed again as `memserver gpu-load`; it ends when the
// other end of its socket closes, and after kGpuLoadNsMax at the latest.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/gpu_list.h"

namespace tidepool::memserver {

inline constexpr int64_t kGpuLoadNsMax = 5 * kNsPerSecond;
// Longer than a time slice, like the matrix products of a large model.
inline constexpr int64_t kLoadKernelNs = 5 * kNsPerMs;

class GpuLoad {
 public:
  // Returns once its first kernels run. Errors: kKeeperFailed (no process), kCudaUnavailable (it
  // has no kernel for this GPU, or was not ready in time).
  static Result<GpuLoad> Start(const device::GpuUuid& gpu);
  GpuLoad(GpuLoad&&) = default;
  GpuLoad& operator=(GpuLoad&&) = delete;
  // Waits until the process has ended.
  ~GpuLoad();

 private:
  GpuLoad(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}

  pid_t pid_;
  UniqueFd socket_;
};

// The body of `memserver gpu-load UUID`, whose socket is kInheritedFd. Returns the exit code.
int RunGpuLoad(const std::string& uuid, const Clock& clock);

}  // namespace tidepool::memserver
