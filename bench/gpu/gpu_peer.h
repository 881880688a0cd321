// GpuPeer: a second process on the same GPU, for what only two processes show: the cost of
// importing memory, and how long a flag takes from one to the other.
//
// One thread. Make it before this process first calls CUDA: it forks, and a driver that has been
// started does not survive that. Any failure on either side ends the program.
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
  ~GpuPeer();  // ends the process
  GpuPeer(const GpuPeer&) = delete;
  GpuPeer& operator=(const GpuPeer&) = delete;

  // Importing memory of this process, by each form that the GPU has, and letting go of it.
  void MeasureImport(uint64_t bytes, uint64_t rounds, RowPrinter* printer);
  // Round trips through flags in a page that both processes have registered.
  void MeasureFlags(device::CudaDevice* device, uint64_t trips, RowPrinter* printer);

 private:
  struct Order;
  void Send(const Order& order, int fd);
  void AwaitReady();
  // Importing took the peer this long, and letting go, in seconds.
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
