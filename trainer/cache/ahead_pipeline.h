// AheadPipeline: carries out fetches and submissions of an rCache in memory of a device: everything
// is put into streams, where flags order it, and the CPU goes on. Same calls, same order of
// requests and collectives as TransferPipeline.
//
// One thread (the trainer's main thread). Only WaitAll and AwaitOperators block, and Fetch and
// Submit where kTicketsUsed transfers are under way. Mark holds the CPU back where it is
// kOperatorsAhead operators ahead of the compute stream: a CPU that fills the driver's queue (about
// a thousand operations) stands in the driver, where nobody looks after a server or a peer that is
// lost.
//
// Streams of this process are ordered by markers (M: of the compute stream; R: behind a write of
// ready; G: behind an all-gather), the server by the flags of a transfer's ticket (T):
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
//  1. a wait is put into a stream only behind everything of this process that its end needs, and
//     the driver knows of that order: before a wait for T.done comes one for R. So a stream waits
//     for the server, for peers that do the same, and for what came earlier in this program: no
//     circle, in whatever order the server serves, and however few queues of the hardware the
//     streams share;
//  2. `ready` of a fetch comes behind all that used the block before: its last operator (the mark
//     behind it), and where none used it the transfer itself. When that has happened already, the
//     CPU stores it, and the recycle stream, which keeps order, holds nobody up;
//  3. collectives enter their group's stream in the order of the transfers. Groups whose kernels
//     must not meet share one stream;
//  4. outcomes are taken in order, so that a word of a ticket is not used again while a stream
//     waits for it;
//  5. after an error nothing more is requested and every later call returns the error. Requests
//     that were sent before may still be carried out, also with gradients of garbage: FinishStep
//     fails, so the step is never sealed, and the server drops them. The service poisons the done
//     words of a session that is over, this object that of a transfer that failed alone, so that no
//     stream stays.
// The service's flag words are registered with the device by the code that attached, for as long as
// this object lives (trainer/run/run_device.h). Counted: `late` transfers are prefetches at which a
// look of the CPU (Progress, Wait) found the compute stream standing: no more than there were.
// wait_ns is time for which the CPU itself stood still for transfers; the stream's waits are not in
// it, nor is time held back, when the device has work.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/cache/pipeline_setup.h"

namespace tidepool::trainer {

// The most operators with parameters (a few kernels each, and their flags) that the CPU may be
// ahead of the compute stream.
inline constexpr uint64_t kOperatorsAhead = 64;
// One operator in so many has a mark, at which the CPU can be held back.
inline constexpr uint64_t kOperatorsAMark = 8;

class AheadPipeline {
 public:
  // Requires compute and recycle streams, a service with registered flags, and a stream of every
  // group.
  explicit AheadPipeline(PipelineSetup setup);
  // Waits, for at most two seconds, until the streams have passed everything that this object put
  // into them.
  ~AheadPipeline();

  // A pass begins: its operations have their places from here on.
  void BeginPass() { names_.BeginPass(); }
  // This rank's shard comes to its place in `block` behind all that used it, then all shards are
  // gathered; or the whole chunk comes, where the setup says so.
  OpId Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted, const BlockPast& past);
  // Behind all that is in the compute stream the block is reduced over the group (to all of its
  // ranks where the setup says so), then this rank's shard goes to the server.
  OpId Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);
  // An operator with parameters is in the compute stream; true when a mark behind it is wanted, so
  // that the CPU can be held back.
  bool Used();
  // Puts a mark behind the operators that have used blocks so far; call it before the next Wait.
  // May hold the CPU back.
  UseMark Mark();

  // True when the transfer has ended, and its block may be used again.
  bool Done(OpId id) const;
  // The calls below return what the server, the group or a stream said, latched.
  // What is put into the compute stream from here on comes behind the transfer. `prefetched`: count
  // it when it comes late.
  Status Wait(OpId id, bool prefetched);
  Status Progress();
  Status WaitAll();
  // Lets the groups compare their order, so that ranks that differ need not wait for what never
  // ends, then waits for all.
  Status FinishPass();
  // Blocks until what is in the compute stream has ended; transfers, streams and peers are watched
  // meanwhile. Errors: as above, as soon as one is seen.
  Status AwaitOperators();

  // By data group, since the construction.
  const std::vector<GroupTraffic>& traffic() const { return traffic_; }
  uint64_t wait_ns() const { return wait_ns_; }
  uint64_t late() const { return late_; }

 private:
  struct Word {
    device::Flag* flag = nullptr;
    uint64_t value = 0;
    bool Reached() const;
  };
  struct Point {  // of a stream; without one it has passed
    device::Stream* stream = nullptr;
    device::Stream::Marker marker = 0;
    bool Passed() const { return stream == nullptr || stream->Passed(marker); }
  };
  struct Op {
    ChunkId chunk;
    bool fetch;
    client::Ticket ticket;
    Word ready = {}, done = {};
    Point told = {};      // behind the write of `ready`, where a stream has it
    Point gathered = {};  // of a fetch in a group: behind the all-gather
    Collective::Ticket in_group = 0;
    Collective::Ticket sums_in_group = 0;  // the second half of an all-reduce
    bool answered = false, awaited = false;
    // The block may be used by others.
    bool Ended() const { return done.Reached() && gathered.Passed(); }
  };
  struct MarkBehind {
    uint64_t operators = 0;  // how many
    UseMark at = 0;
  };
  using Ends = std::vector<std::pair<device::Stream*, device::Stream::Marker>>;
  struct Standing {  // a prefetch for which the compute stream waits
    UseMark at;
    OpId op;
    bool late;
  };

  // The first error is kept, and lets the streams go.
  Status Latch(Status status);
  // After an error: no stream of this process waits any longer for the server, for another stream
  // or for a peer. Flags first, for a communicator that is aborted waits for the streams.
  void LetStreamsGo() const;
  static Point PointIn(device::Stream* stream) { return {stream, stream->Record()}; }
  // Behind the transfer.
  static void PutWait(device::Stream* stream, const Op& op);
  // Blocks until the compute stream has passed `at`.
  void HoldBack(UseMark at);
  bool IsFree(const BlockPast& past) const;
  // Makes the recycle stream wait for all that used the block. Requires !IsFree(past).
  void WaitUntilFree(const BlockPast& past);
  OpId Start(Op op, const Result<client::Ticket>& ticket);
  // Takes the outcome of the oldest transfer; true when that has ended and is forgotten.
  bool FinishOldest();
  void TakeAnswer(Op* op);
  void TakeGroupsWord(Op* op);
  // The group's word about one operation, once it has one.
  void TakeWord(Collective* group, Collective::Ticket* ticket);
  GroupTraffic& CountOf(ChunkId chunk) { return traffic_[setup_.layout->chunks[chunk].data_group]; }
  // Blocks until the oldest transfer has ended.
  Status AwaitOldest();
  Status MakeRoom();
  void LookAtStanding();
  // This process's streams, each once.
  std::vector<device::Stream*> Streams() const;
  Ends RecordEnds() const;
  // True when all have passed. Latches errors of the streams.
  bool LookAt(const Ends& ends);

  const PipelineSetup setup_;
  PassNames names_;
  std::deque<Op> ops_;  // numbers first_, first_ + 1, ...
  OpId first_ = 1;
  uint64_t operators_ = 0;        // in the compute stream
  std::deque<MarkBehind> marks_;  // by which the CPU is held back, in order
  std::deque<Standing> standing_;
  std::vector<GroupTraffic> traffic_;  // by data group
  uint64_t wait_ns_ = 0, late_ = 0;
  Status status_;
};

}  // namespace tidepool::trainer
