// WeightPut: brings a new model's fp32 weights into the memory server, piece by piece through the
// rCache, so that a rank never holds more than one module and the rCache.
//
// One thread (the trainer's main thread), before the first pass: it uses the rCache memory that
// ParameterCache uses later.
// Each rank puts its own shards; padding is put as zeros. Frozen parameters come another way
// (client/provide_frozen.h). Parameters of one chunk must come in order, chunks in any order; but
// in that of their numbers where the server has their weights on NVMe alone (it sends the rank away
// else). Where the rCache is memory of a device, pieces are put together in registered host memory
// and copied into the rCache through the compute stream; the CPU waits for each copy before it asks
// the server.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/cache/cache_streams.h"
#include "trainer/comm/nccl/registered_host.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

class WeightPut {
 public:
  // All must outlive the object.
  WeightPut(const ChunkLayout* layout, Rank rank, client::ChunkService* service,
            CacheStreams streams = {});

  // The initial values of one parameter (element_count of them); copied before return. Values
  // outside this rank's shards, and those of frozen parameters, are dropped.
  // Waits when both halves of the staging memory are on their way.
  // Errors: kUsageError (out of order, or twice), those of the server, and on a device
  // kMemoryMapFailed, kCudaFailed.
  Status Put(ParameterId parameter, const float* values);
  // A moment of a parameter, before its weights are put: `plane` as client::Range has it. Waits for
  // the server. Errors: as Put.
  Status PutMoment(ParameterId parameter, uint32_t plane, const float* values);
  // Waits until the server has all. Errors: kUsageError when a parameter is missing, and those of
  // the server.
  Status Finish();

  uint64_t bytes_put() const { return bytes_put_; }

 private:
  struct Half {
    float* data = nullptr;      // where the CPU puts it together
    std::byte* at = nullptr;    // in the rCache
    client::Ticket ticket = 0;  // 0: nothing on its way
  };

  // The parameter of the chunk that must come next.
  ParameterId NextParameter(ChunkId chunk) const;
  // The next `count` elements of the chunk; null values: zeros.
  Status Append(ChunkId chunk, const float* values, uint64_t count);
  // Host memory for the halves, where the CPU cannot write into the rCache.
  Status MakeStaging();
  // The piece to its place in the rCache.
  Status CopyToRcache(const Half& half);
  Status Flush();
  Status WaitFor(Half* half);

  const ChunkLayout* layout_;
  Rank rank_;
  client::ChunkService* service_;
  CacheStreams streams_;
  RegisteredHost staging_;
  std::array<Half, 2> halves_;
  uint64_t half_elements_ = 0;
  size_t filling_ = 0;             // which half
  client::Range piece_;            // what it holds
  std::vector<uint64_t> cursors_;  // by ChunkId: elements that have been seen
  uint64_t bytes_put_ = 0;
};

}  // namespace tidepool::trainer
