// Collective: the few operations that the ranks of one data-parallel group do together (a virtual
// seam: sockets, Gloo, NCCL, a fake in tests).
//
// One thread (the trainer's main thread) calls all methods of an object. Every rank of the group
// must start the same operations in the same order with the same sizes; operations of one group
// complete in the order in which they were started.
// Each operation has a name. Ranks that are in different operations, or in equal ones of other
// sizes, get kCollectiveFailed with the operations of both: at once where the host moves the bytes,
// at the next CompareOrder where a device does.
// Memory: buffers are the caller's and must stay valid and untouched until Wait returns; the result
// is there then, not before.
// Shapes: a block holds `world` equal shards of `shard_elements` elements; rank r's shard is
// block[r * shard_elements ...].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"
#include "trainer/comm/operation_name.h"

namespace tidepool::trainer {

// One shard-structured block in memory that the collective's device can reach.
struct BlockView {
  void* data = nullptr;         // [world][shard_elements]
  uint64_t shard_elements = 0;  // equal on all ranks
  DType dtype = DType::kF32;
  OperationName name{};  // of the operation on it; equal on all ranks

  // Bytes of one rank's shard.
  uint64_t shard_bytes() const { return shard_elements * BytesOf(dtype); }
};

// What one rank gives each rank of its group, and takes from each, in one all-to-all: parts of any
// sizes, 0 as well, each behind the part of the rank before. What rank r gives rank s is as large
// as what s takes from r.
struct PartsView {
  const void* out = nullptr;                            // [sum of out_elements]
  void* in = nullptr;                                   // [sum of in_elements]; apart from `out`
  std::vector<uint64_t> out_elements{}, in_elements{};  // by rank of the group, this one included
  DType dtype = DType::kF32;
  OperationName name{};  // equal on all ranks

  // Bytes of all parts of one direction, and of those of the ranks before `rank`.
  uint64_t out_bytes() const { return BytesBefore(out_elements, out_elements.size()); }
  uint64_t in_bytes() const { return BytesBefore(in_elements, in_elements.size()); }
  uint64_t BytesBefore(const std::vector<uint64_t>& elements, uint64_t rank) const {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rank; ++i) sum += elements[i];
    return sum * BytesOf(dtype);
  }
};

class Collective {
 public:
  using Ticket = uint64_t;  // an operation in flight, from 1

  virtual ~Collective() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world() const = 0;

  // In place: on entry this rank's shard is valid, on completion all shards are. (Elixir v1,
  // section V.)
  virtual Ticket StartAllGather(const BlockView& block) = 0;
  // In place: on entry the whole block holds this rank's addends, on completion this rank's shard
  // holds the sum over ranks; the rest is unspecified. The sum's order of addition is fixed, so
  // repeated runs give the same bits. (Elixir v1, section V.)
  virtual Ticket StartReduceScatter(const BlockView& block) = 0;

  // On completion the part of each rank is in `in`. The bytes are only moved. (GShard, Lepikhin et
  // al. 2020, section 3: how tokens come to experts and back; sizes that differ are those of
  // routing without a capacity.)
  virtual Ticket StartAllToAll(const PartsView& parts) = 0;

  // The stream in whose order operations take effect (memory of a device): an operation begins when
  // all that was put into the stream before it has ended, and what is put in behind it sees its
  // result; Wait then only tells whether the group is well. Null: the calling CPU sees results,
  // when Wait has returned.
  virtual device::Stream* stream() { return nullptr; }

  // True when Wait would return without waiting for a peer (well or badly; it tells). Never blocks.
  virtual bool Test(Ticket ticket) = 0;
  // Blocks until the operation has ended; each ticket is waited for once. Errors: kCollectiveFailed
  // (a peer is gone, or the time-out of the group passed).
  virtual Status Wait(Ticket ticket) = 0;

  // An operation has failed, or the step is given up: what is still in flight ends in some way,
  // soon, and everything fails with `why` from here on. Call it when nothing else holds up the
  // streams of this process any more (flags poisoned). May block for seconds.
  virtual void GiveUp(const Status& /*why*/) {}

  // All operations of a pass have been started: where they were not compared one by one, the ranks
  // compare a hash of their order now. All ranks call it at the same place in their order. Waits
  // for the other ranks' calls, not for operations. Errors: kCollectiveFailed: names the first
  // difference, and what both ranks have started there.
  virtual Status CompareOrder() { return {}; }

  // Blocking conveniences for set-up, metrics and agreement. Errors: kCollectiveFailed.
  virtual Status Barrier() = 0;
  virtual Status SumDoubles(double* values, uint64_t count) = 0;
  // Rank 0's bytes replace everybody's; all ranks give the same size.
  virtual Status Broadcast(void* bytes, uint64_t size) = 0;
};

}  // namespace tidepool::trainer
