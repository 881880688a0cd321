// GpuPeer: a second process on the same GPU, for measurements that need two: the cost of importing
// memory, and the latency of flags between processes.
//
// One thread. Create it before this process's first CUDA call: it forks, and a started driver does
// not survive that. Any failure on either side ends the program.
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/unique_fd.h"
#include "bench/harness/row.h"
#include "device/cuda/cuda_device.h"
#include "shm/segment.h"

namespace tidepool::bench {

class GpuPeer {
 public:
  explicit GpuPeer(int ordinal);
  ~GpuPeer();  // ends the peer process
  GpuPeer(const GpuPeer&) = delete;
  GpuPeer& operator=(const GpuPeer&) = delete;

  // Imports this process's memory, in each form that the GPU supports, and releases it.
  void MeasureImport(uint64_t bytes, uint64_t rounds, RowPrinter* printer);
  // Round trips through flags in a page registered by both processes.
  void MeasureFlags(device::CudaDevice* device, uint64_t trips, RowPrinter* printer);

 private:
  struct Order;
  void Send(const Order& order, int fd);
  void AwaitReady();
  // The peer's times for import and release, in seconds.
  struct Times {
    double import = 0, release = 0;
  };
  Times TakeTimes();
  static void Serve(int socket, int ordinal);

  const int ordinal_;
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace tidepool::bench
