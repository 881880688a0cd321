// Collective: the collective operations of one data-parallel group (a virtual seam: sockets, Gloo,
// NCCL, a fake in tests).
//
// One thread (the trainer's main thread) calls all methods of an object. Every rank of the group
// must start the same operations in the same order with the same sizes; operations of one group
// complete in the order in which they were started.
// Each operation has a name. Ranks that start different operations, or the same one with different
// sizes, get kCollectiveFailed naming both operations: at once if the host moves the bytes, at the
// next CompareOrder if a device does.
// Memory: buffers belong to the caller and must stay valid and untouched until Wait returns; only
// then is the result there.
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

// The parts that one rank sends to each rank of its group, and receives from each, in one
// all-to-all. Parts have any size, also 0, and lie in rank order without gaps. The part that rank r
// sends to s is as large as the part that s expects from r.
struct PartsView {
  const void* out = nullptr;                            // [sum of out_elements]
  void* in = nullptr;                                   // [sum of in_elements]; apart from `out`
  std::vector<uint64_t> out_elements{}, in_elements{};  // by rank of the group, this one included
  DType dtype = DType::kF32;
  OperationName name{};  // equal on all ranks

  // Bytes of all parts of one direction; below, bytes of the parts of the ranks before `rank`.
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

  // On completion `in` holds the parts of all ranks. Bytes are moved unchanged. (GShard, Lepikhin
  // et al. 2020, section 3: dispatch of tokens to experts and back; sizes that differ are those of
  // routing without a capacity.)
  virtual Ticket StartAllToAll(const PartsView& parts) = 0;

  // The stream in whose order operations take effect (device memory): an operation begins after all
  // work enqueued before it, and work enqueued after it sees its result; Wait then only reports
  // whether the group is healthy. Null: the calling CPU sees the result after Wait has returned.
  virtual device::Stream* stream() { return nullptr; }

  // True when Wait would not block on a peer, whether the operation succeeded or failed. Never
  // blocks.
  virtual bool Test(Ticket ticket) = 0;
  // Blocks until the operation has ended; call it once per ticket. Errors: kCollectiveFailed (a
  // peer is gone, or the time-out of the group passed).
  virtual Status Wait(Ticket ticket) = 0;

  // Call after an operation has failed or the step is given up: operations in flight end soon, with
  // any outcome, and every later call fails with `why`. Nothing else may hold up the streams of
  // this process by then (flags poisoned). May block for seconds.
  virtual void GiveUp(const Status& /*why*/) {}

  // Call on all ranks at the same position in their order, after all operations of a pass have been
  // started: where operations were not compared one by one, the ranks compare a hash of their
  // order. Waits for the other ranks' calls, not for operations. Errors: kCollectiveFailed, naming
  // the first difference and what both ranks have started there.
  virtual Status CompareOrder() { return {}; }

  // Blocking collectives for set-up, metrics and agreement. Errors: kCollectiveFailed.
  virtual Status Barrier() = 0;
  virtual Status SumDoubles(double* values, uint64_t count) = 0;
  // Rank 0's bytes replace those of all ranks; `size` is the same on all ranks.
  virtual Status Broadcast(void* bytes, uint64_t size) = 0;
};

}  // namespace tidepool::trainer
