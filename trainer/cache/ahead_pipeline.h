// AheadPipeline: carries out fetches and submissions for an rCache in device memory: it enqueues
// all work into streams, ordered by flags, without blocking the CPU. The calls, and the order of
// requests and collectives, are those of TransferPipeline.
//
// One thread (the trainer's main thread). Only WaitAll and AwaitOperators block, and Fetch and
// Submit when kTicketsUsed transfers are in flight. Mark holds the CPU back when it is
// kOperatorsAhead operators ahead of the compute stream: a CPU that fills the driver's queue (about
// a thousand operations) blocks inside the driver, where nobody watches for a lost server or peer.
//
// Markers order the streams of this process (M: compute stream; R: after a write of ready; G: after
// an all-gather); the flags of a transfer's ticket (T) order the server:
//
//   fetch, alone       recycle: wait M, or R and T.done of the block's past, write T.ready, R
//                      compute, before the first use: wait R, T.done
//   fetch, in group    recycle: the same
//                      group:   wait R, T.done, all-gather, G
//                      compute, before the first use: wait G
//   submit, alone      compute: write T.ready, R
//   submit, in group   compute: M
//                      group:   wait M, reduce-scatter, write T.ready, R
//
// Invariants:
//  1. a wait is enqueued only after all work of this process that it depends on, and the driver
//     knows that order: a wait for R precedes each wait for T.done. So a stream waits for the
//     server, for peers that do the same, and for earlier work of this program: there is no
//     cycle, in whatever order the server serves and however few hardware queues the streams
//     share;
//  2. `ready` of a fetch follows all uses of the block: its last operator (the mark after it) or,
//     without a use, the last transfer. If these have completed already, the CPU stores it, so
//     that nothing is held up in the recycle stream, which keeps order;
//  3. collectives enter their group's stream in the order of the transfers. Groups whose kernels
//     must not overlap share one stream;
//  4. outcomes are taken in order, so that a ticket's word is not reused while a stream waits for
//     it;
//  5. after an error nothing more is requested and every later call returns the error. Requests
//     already sent may still be carried out, also with garbage gradients: FinishStep fails, so the
//     step is never sealed and the server drops them. The service poisons the done words of a
//     session that is over, and this object that of a transfer that failed alone, so that no
//     stream stays blocked.
// The code that attached registers the service's flag words with the device for the life of this
// object (trainer/run/run_device.h). Counters: `late` transfers are prefetches at which a check by
// the CPU (Progress, Wait) found the compute stream waiting: a lower bound. wait_ns is time in
// which the CPU itself waited for transfers, without the streams' waits and without time held back
// while the device has work.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/cache/pipeline_setup.h"

namespace tidepool::trainer {

// The most operators with parameters (a few kernels each, and their flags) that the CPU may run
// ahead of the compute stream.
inline constexpr uint64_t kOperatorsAhead = 64;
// Every so many operators get a mark, at which the CPU can be held back.
inline constexpr uint64_t kOperatorsAMark = 8;

class AheadPipeline {
 public:
  // Requires compute and recycle streams, a service with registered flags, and collectives that all
  // have streams.
  explicit AheadPipeline(PipelineSetup setup);
  // Waits at most two seconds until the streams have passed all work of this object.
  ~AheadPipeline();

  // Begins a pass: numbers its operations from here on.
  void BeginPass() { names_.BeginPass(); }
  // Fetches this rank's shard to its place in `block` after all uses of the block, then
  // all-gathers; or fetches the whole chunk (PipelineSetup::exchange).
  OpId Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted, const BlockPast& past);
  // After all work in the compute stream: reduces the block over the group (to all of its ranks if
  // the setup says so), then sends this rank's shard to the server.
  OpId Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);
  // Sends this rank's shard of the block, which the compute stream has zeroed. No rank of the group
  // has another gradient: they exchange nothing.
  OpId SubmitZeros(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch) {
    return SubmitAlone(chunk, block, version, micro_batch);
  }
  // Notes that an operator with parameters is in the compute stream; true if a mark should follow,
  // so that the CPU can be held back.
  bool Used();
  // Records a mark after the operators that have used blocks so far; call it before the next Wait.
  // May hold the CPU back.
  UseMark Mark();

  // True when the transfer has ended, and its block may be used again.
  bool Done(OpId id) const;
  // The calls below return the latched error of the server, the group or a stream. Work enqueued
  // into the compute stream afterwards follows the transfer. `prefetched`: count it if it is late.
  Status Wait(OpId id, bool prefetched);
  Status Progress();
  Status WaitAll();
  // Lets the groups compare their order, so that ranks that differ do not wait forever, then waits
  // for all transfers.
  Status FinishPass();
  // Blocks until the work in the compute stream has ended; watches transfers, streams and peers
  // meanwhile. Errors: as above, as soon as one is seen.
  Status AwaitOperators();

  // By data group, since construction.
  const std::vector<GroupTraffic>& traffic() const { return traffic_; }
  uint64_t wait_ns() const { return wait_ns_; }
  uint64_t late() const { return late_; }

 private:
  struct Word {
    device::Flag* flag = nullptr;
    uint64_t value = 0;
    bool Reached() const;
  };
  struct Point {  // in a stream; without one it has passed
    device::Stream* stream = nullptr;
    device::Stream::Marker marker = 0;
    bool Passed() const { return stream == nullptr || stream->Passed(marker); }
  };
  struct Op {
    ChunkId chunk;
    bool fetch;
    client::Ticket ticket;
    Word ready = {}, done = {};
    Point told = {};      // after the write of `ready`, if a stream writes it
    Point gathered = {};  // of a fetch in a group: after the all-gather
    Collective::Ticket in_group = 0;
    Collective::Ticket sums_in_group = 0;  // the second half of an all-reduce
    bool answered = false, awaited = false;
    // True when others may use the block.
    bool Ended() const { return done.Reached() && gathered.Passed(); }
  };
  struct MarkBehind {
    uint64_t operators = 0;  // number so far
    UseMark at = 0;
  };
  using Ends = std::vector<std::pair<device::Stream*, device::Stream::Marker>>;
  struct Standing {  // a prefetch that the compute stream waits for
    UseMark at;
    OpId op;
    bool late;
  };

  // Keeps the first error and releases the streams.
  Status Latch(Status status);
  // After an error: no stream of this process waits any longer for the server, another stream or a
  // peer. Flags first, because aborting a communicator waits for the streams.
  void LetStreamsGo() const;
  static Point PointIn(device::Stream* stream) { return {stream, stream->Record()}; }
  // Makes the stream wait for the transfer.
  static void PutWait(device::Stream* stream, const Op& op);
  // Blocks until the compute stream has passed `at`.
  void HoldBack(UseMark at);
  bool IsFree(const BlockPast& past) const;
  // Makes the recycle stream wait for all uses of the block. Requires !IsFree(past).
  void WaitUntilFree(const BlockPast& past);
  // Sends this rank's shard without the group.
  OpId SubmitAlone(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);
  OpId Start(Op op, const Result<client::Ticket>& ticket);
  // Takes the outcome of the oldest transfer; true if it has ended and was removed.
  bool FinishOldest();
  void TakeAnswer(Op* op);
  void TakeGroupsWord(Op* op);
  // Takes the group's result of one operation, once there is one.
  void TakeWord(Collective* group, Collective::Ticket* ticket);
  GroupTraffic& CountOf(ChunkId chunk) { return traffic_[setup_.layout->chunks[chunk].data_group]; }
  // Blocks until the oldest transfer has ended.
  Status AwaitOldest();
  Status MakeRoom();
  void LookAtStanding();
  // This process's streams, each listed once.
  std::vector<device::Stream*> Streams() const;
  Ends RecordEnds() const;
  // True when all ends have passed. Latches stream errors.
  bool LookAt(const Ends& ends);

  const PipelineSetup setup_;
  PassNames names_;
  std::deque<Op> ops_;  // numbers first_, first_ + 1, ...
  OpId first_ = 1;
  uint64_t operators_ = 0;        // number in the compute stream
  std::deque<MarkBehind> marks_;  // at which the CPU is held back, in order
  std::deque<Standing> standing_;
  std::vector<GroupTraffic> traffic_;  // by data group
  uint64_t wait_ns_ = 0, late_ = 0;
  Status status_;
};

}  // namespace tidepool::trainer
