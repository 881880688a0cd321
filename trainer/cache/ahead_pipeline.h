// AheadPipeline: carries out fetches and submissions of an rCache in memory of a device: everything is put into streams, where flags order
// it, and the CPU goes on. Same calls, same order of requests and collectives as TransferPipeline.
//
// One thread (the trainer's main thread). Only WaitAll and AwaitOperators block, and Fetch and Submit where kTicketsUsed transfers are
// under way. Used holds the CPU back where it is kMarksAhead points of the compute stream ahead: a CPU that fills the driver's queue (about
// a thousand operations) stands in the driver, where nobody looks after a server or a peer that is lost.
//
// Streams and flags of one transfer (T: a word of the service's ticket; P: this process's word of the compute stream; G: of the group's):
//
//   fetch, alone     recycle: wait P or T.done of the block's past, write T.ready  |  compute, before the first use: wait T.done
//   fetch, in group  the same, and group: wait T.done, all-gather, write G         |  compute, before the first use: wait G
//   submit, alone    compute: write T.ready
//   submit, in group compute: write P  |  group: wait P, reduce-scatter, write T.ready
//
// Invariants:
//  1. a wait is put into a stream only behind everything of this process that its end needs: T.done after T.ready was put in, P and G after
//     their writes were. So a stream waits for the server, for peers that do the same, and for what came earlier in this program: no
//     circle, in whatever order the server serves;
//  2. `ready` of a fetch comes behind all that used the block before: its last operator (the mark of Used), and where none used it the
//     transfer itself. When that has happened already, the CPU stores it, and the recycle stream, which keeps order, holds nobody up;
//  3. collectives enter their group's stream in the order of the transfers. Groups whose kernels must not meet share one stream;
//  4. outcomes are taken in order, so that a word of a ticket is not used again while somebody waits for it;
//  5. after an error nothing more is requested and every later call returns the error. Requests that were sent before may still be carried
//     out, also with gradients of garbage: FinishStep fails, so the step is never sealed, and the server drops them. The service poisons
//     the done words of a session that is over, this object that of a transfer that failed alone, so that no stream stays.
// The service's flag words are registered with the device by whoever attached, for as long as this object lives (trainer/run_device.h).
// Counted: `late` transfers are prefetches at which a look of the CPU (Progress, Wait) found the compute stream standing: no more than
// there were. wait_ns is time for which the CPU itself stood still for transfers; the stream's waits are not in it, nor is time held back,
// when the device has work.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/cache/pipeline_setup.h"
#include "trainer/comm/registered_host.h"

namespace tidepool::trainer {

// Some thirty operators with a few kernels each, and their flags.
inline constexpr UseMark kMarksAhead = 64;

class AheadPipeline {
 public:
  // Requires compute and recycle streams, a service with registered flags, and a stream of every group. Errors: kMemoryMapFailed,
  // kCudaFailed.
  static Result<std::unique_ptr<AheadPipeline>> Open(PipelineSetup setup);
  // Lets the streams pass what they still have of it, for at most two seconds; what they hold longer stays registered for ever.
  ~AheadPipeline();

  // This rank's shard comes to its place in `block` behind all that used it, then all shards are gathered.
  OpId Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted, const BlockPast& past);
  // Behind all that is in the compute stream the block is reduced over the group, then this rank's shard goes to the server.
  OpId Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);
  // What is in the compute stream up to here used some blocks; no later operator does before the next Wait. May hold the CPU back.
  UseMark Used();

  bool Done(OpId id) const;
  // Errors of these: what the server, the group or a stream said, latched.
  // What is put into the compute stream from here on comes behind the transfer. `prefetched`: count it when it comes late.
  Status Wait(OpId id, bool prefetched);
  Status Progress();
  Status WaitAll();
  // Blocks until what is in the compute stream has ended, and looks after all else meanwhile. Errors: as above, at once.
  Status AwaitOperators();

  uint64_t bytes_h2d() const { return bytes_h2d_; }
  uint64_t bytes_d2h() const { return bytes_d2h_; }
  uint64_t wait_ns() const { return wait_ns_; }
  uint64_t late() const { return late_; }

 private:
  struct Word {
    device::Flag* flag = nullptr;
    uint64_t value = 0;
    bool Reached() const;
  };
  struct Op {
    ChunkId chunk;
    bool fetch;
    client::Ticket ticket;
    Word ready, end;  // end: the block may be used by others
    Collective::Ticket in_group = 0;
    bool answered = false, awaited = false;
  };
  using Ends = std::vector<std::pair<device::Stream*, device::Stream::Marker>>;
  struct Standing {  // a prefetch for which the compute stream waits
    Word at, end;
    bool late;
  };

  AheadPipeline(PipelineSetup setup, RegisteredHost words) : setup_(std::move(setup)), words_(std::move(words)) {}

  // The first error is kept, and lets the streams go.
  Status Latch(Status status);
  void PoisonOwnWords() const;
  // After an error: no stream of this process waits any longer for the server, for another stream or for a peer. Flags first, for a
  // communicator that is aborted waits for the streams.
  void LetStreamsGo() const;
  Word PlaceInWords(size_t index) const;
  // A point of the compute stream.
  Word MarkCompute();
  // Until the compute stream has come to `at`.
  void HoldBack(const Word& at);
  Word FreeAt(const BlockPast& past) const;
  OpId Start(Op op, const Result<client::Ticket>& ticket);
  // Takes what the oldest transfer has to say; true when it has ended and left.
  bool FinishOldest();
  void TakeAnswer(Op* op);
  void TakeGroupsWord(Op* op);
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
  RegisteredHost words_;  // of this process: the compute stream's, then each group's
  std::deque<Op> ops_;    // numbers first_, first_ + 1, ...
  OpId first_ = 1;
  UseMark marks_ = 0;              // written into the compute stream
  std::vector<uint64_t> gathers_;  // by group: written into its stream
  std::deque<Standing> standing_;
  uint64_t bytes_h2d_ = 0, bytes_d2h_ = 0, wait_ns_ = 0, late_ = 0;
  Status status_;
};

}  // namespace tidepool::trainer
