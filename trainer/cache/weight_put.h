// WeightPut: uploads a new model's fp32 weights to the memory server, piece by piece through the
// rCache, so that a rank never holds more than one module and the rCache.
//
// One thread (the trainer's main thread), before the first pass: it uses the rCache memory that
// ParameterCache uses later.
// Each rank puts its own shards, with padding as zeros. Frozen parameters are provided separately
// (client/provide_frozen.h). Parameters of one chunk must come in order, chunks in any order,
// except in ascending order where the server has their weights on NVMe only (it rejects the rank
// otherwise). If the rCache is device memory, pieces are assembled in registered host memory and
// copied into the rCache through the compute stream; the CPU waits for each copy before it sends
// the request.
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

  // Puts the initial values of one parameter (element_count of them); copies them before it
  // returns. Ignores values outside this rank's shards, and those of frozen parameters. Waits while
  // both halves of the staging memory are in flight. Errors: kUsageError (out of order, or twice),
  // those of the server, and on a device kMemoryMapFailed, kCudaFailed.
  Status Put(ParameterId parameter, const float* values);
  // Puts a moment of a parameter, before its weights are put: `plane` as in client::Range. Waits
  // for the server. Errors: as Put.
  Status PutMoment(ParameterId parameter, uint32_t plane, const float* values);
  // Waits until the server has everything. Errors: kUsageError if a parameter is missing, and those
  // of the server.
  Status Finish();

  uint64_t bytes_put() const { return bytes_put_; }

 private:
  struct Half {
    float* data = nullptr;      // where the CPU assembles it
    std::byte* at = nullptr;    // in the rCache
    client::Ticket ticket = 0;  // 0: nothing in flight
  };

  // The parameter of the chunk that must come next.
  ParameterId NextParameter(ChunkId chunk) const;
  // Appends the next `count` elements of the chunk; null values: zeros.
  Status Append(ChunkId chunk, const float* values, uint64_t count);
  // Allocates host memory for the halves if the CPU cannot write to the rCache.
  Status MakeStaging();
  // Copies the piece to its place in the rCache.
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
  size_t filling_ = 0;             // index of the half
  client::Range piece_;            // the range that it holds
  std::vector<uint64_t> cursors_;  // by ChunkId: number of elements appended
  uint64_t bytes_put_ = 0;
};

}  // namespace tidepool::trainer
