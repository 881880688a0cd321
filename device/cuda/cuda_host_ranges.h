// CudaHostRanges: the host memory of this process that is registered with the CUDA driver, for all
// GPUs together.
//
// Any thread. A registration applies to every GPU (portable), and the driver accepts each page
// once: a piece that is registered for a second GPU is counted here, not registered again.
// Invariants: pieces do not overlap; a piece is in the table from after its registration until
// before it is undone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/status.h"
#include "device/cuda/cuda_context.h"

namespace tidepool::device {

class CudaHostRanges {
 public:
  struct Place {
    CudaAddress address = 0;   // the GPUs' address of it
    uint64_t bytes_after = 0;  // remaining bytes of its piece
  };

  // There is one driver per process, hence one table.
  static CudaHostRanges& OfProcess();

  // Registers a piece. Blocks (about 0.1 s/GiB); Find works meanwhile. Errors: kCudaFailed (also if
  // part of it is registered in another piece).
  Status Add(const std::shared_ptr<CudaContext>& context, void* begin, uint64_t bytes);
  // Undoes one Add of the piece that begins there.
  void Remove(void* begin);
  // None: not registered here.
  std::optional<Place> Find(const void* at) const;

 private:
  struct Piece {
    uint64_t bytes = 0;
    CudaAddress address = 0;
    uint32_t users = 0;
    std::shared_ptr<CudaContext> context;  // that registered it
  };

  std::mutex changes_;  // held by Add and Remove throughout
  mutable std::mutex mutex_;
  std::map<uintptr_t, Piece> pieces_;  // guarded by mutex_
};

}  // namespace tidepool::device
