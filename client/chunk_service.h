// ChunkService: how a trainer asks a memory server for chunks and hands gradients in (a virtual
// seam: MemClient over shared memory, a fake in tests).
//
// One thread (the trainer's main thread) calls all methods of an object; none is re-entrant.
// Every Start... call sends one request and returns a ticket at once. A ticket's outcome must be
// taken exactly once, by Wait. At most kTicketsMax tickets are in flight. The rCache ranges named
// in a request belong to the server from the call until its outcome is known. After any error of
// class kUnavailable the session is over: every later call returns the same error.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/formats/optimizer.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "shm/step_numbers.h"

namespace tidepool::client {

using Ticket = uint64_t;  // from 1
inline constexpr uint32_t kTicketsMax = 512;

// Two words that order a ticket's copy and the trainer's streams without any CPU (docs/gpu.md).
// Both compare cyclically.
struct TicketFlags {
  // The trainer's streams, or its CPU, store `value`: the server may copy.
  std::atomic<uint64_t>* ready = nullptr;
  // The server's stream stores `value` when it has copied; INT64_MAX: the session is over.
  std::atomic<uint64_t>* done = nullptr;
  uint64_t value = 0;
};

// What the server granted at attach. Memory lives until the service is destroyed.
struct Attachment {
  SessionId session = 0;
  JobId job = 0;
  std::byte* rcache = nullptr;  // rcache_bytes of memory that both processes map; 4 KiB aligned
  uint64_t rcache_bytes = 0;
  bool weights_ready = false;  // the job already holds weights (attached to an existing job)
  Version sealed_version = 0;  // last sealed step of that job
  uint64_t data_cursor = 0;    // from its step record
  float loss_scale = 1;        // from its step record, before that step's verdict
  uint32_t scaler_steps = 0;
  uint64_t random_state = 0;
  bool last_skipped = false;  // that step's verdict: a gradient overflowed, nothing was changed
  uint64_t pool_bytes = 0;    // host memory that the job's states take
  // ClientOptions::run_note of the job's first rank; empty where it, or the server, knew of none.
  std::string note = {};
  // Both sides' flag words where the rCache is memory of a device, to be registered with it (whole
  // pages); null on the host.
  std::byte* flags = nullptr;
  uint64_t flags_bytes = 0;
};

// Elements of a chunk, and where they lie in the rCache.
struct Range {
  ChunkId chunk = 0;
  uint64_t element_begin = 0;  // in the chunk
  uint64_t element_count = 0;
  uint64_t rcache_offset = 0;  // bytes
  // Puts only: 0 the weights, 1 exp_avg (or momentum), 2 exp_avg_sq.
  uint32_t plane = 0;
};

// The step behind which a job begins whose states come from a checkpoint.
struct BeginPoint {
  Version version = 0;          // of the states that follow; from 1
  uint64_t optimizer_step = 0;  // the steps of these that were not skipped
  uint64_t data_cursor = 0;
  float loss_scale = 1;
  uint32_t scaler_steps = 0;
  uint64_t random_state = 0;
};

// Which parameters a fetch wants, and how soon.
struct Wanted {
  // A version alone: as soon as can be.
  Wanted(Version wanted, uint32_t uses = 0) : version(wanted), uses_ahead(uses) {}
  Version version;
  // Uses of chunks of this rank that come before the one it is for; 0: the rank waits for it, or
  // cannot tell. Advice: a wrong number costs time only.
  uint32_t uses_ahead;
};

// What one step uses for one parameter group.
struct GroupStep {
  uint32_t group = 0;
  GroupNumbers numbers;
};

// What a rank says at the end of a step.
struct StepEnd {
  Version version = 0;      // that the step's gradients were computed from
  float learning_rate = 0;  // before the parameter group's factor
  float loss_scale = 1;
  uint64_t data_cursor = 0;
  uint32_t scaler_steps = 0;
  uint64_t random_state = 0;
  // Numbers in place of the job's, for this step alone; every rank says the same, and numbers that
  // tidepool::WhyBad finds nothing wrong with.
  std::span<const GroupStep> groups = {};
  // The parameters that no backward of the step has reached on this rank, as a set of bits
  // (shm/step_numbers.h); empty: all are reached. A parameter that no rank of its data-parallel
  // group has reached is left as it is. Servers of earlier releases take its gradient for zero.
  std::span<const uint64_t> untouched = {};
  // What the step was like, where this rank tells it (one of the job's is enough). Servers of
  // earlier releases are not told.
  std::optional<shm::StepFacts> facts = {};
};

// The answer to a request.
struct Outcome {
  Version version = 0;   // fetch: delivered; end of step: the new one
  uint64_t bytes = 0;    // copied
  double grad_norm = 0;  // end of step: of the unscaled gradients, before clipping
  bool skipped = false;  // end of step: overflow, nothing was changed
};

class ChunkService {
 public:
  virtual ~ChunkService() = default;
  // What the session was granted.
  virtual const Attachment& attachment() const = 0;

  // fp32 values at range.rcache_offset (element_count x 4 bytes) become the master weights. A rank
  // puts exactly its shards, each shard in increasing order without gaps, and chunks in increasing
  // order where their weights are on NVMe alone; the job is ready when all ranks have put all
  // shards.
  virtual Result<Ticket> StartPutWeights(const Range& range) = 0;
  // A job without weights begins at this point. Every rank says the same, and waits for the answer
  // before its first put. From then on moments may be put too (Range::plane), those of a range
  // before its weights. Errors: kAbiMismatch (a server of an earlier release); of the ticket
  // kConfigBadValue (states that are not in the host pool).
  virtual Result<Ticket> StartBeginAt(const BeginPoint&) {
    return Status(ErrorId::kAbiMismatch, "this service begins at no step but the first");
  }
  // Parameters of that version (the chunk's dtype) are copied to range.rcache_offset. Answered when
  // that version exists; asking for a version that is already overwritten is an error
  // (kProtocolViolation).
  virtual Result<Ticket> StartFetch(const Range& range, const Wanted& wanted) = 0;
  // The gradient shard at range.rcache_offset (the chunk's dtype), exactly this rank's shard; each
  // chunk once per micro-batch, in order.
  virtual Result<Ticket> StartSubmitGradient(const Range& range, Version version,
                                             uint32_t micro_batch) = 0;
  // Answered when all ranks have ended the step and it is sealed (or skipped); parameters are
  // updated after that. Errors: kAbiMismatch (groups, and a server of an earlier release),
  // kUsageError (more parameters are not reached than can be said).
  virtual Result<Ticket> StartEndStep(const StepEnd& end) = 0;

  // Where the attachment has flags: those of a ticket of StartFetch or StartSubmitGradient, from
  // its start until kTicketsMax more were started. The server begins the copy only when `ready` has
  // reached `value`; `done` follows the copy, also when nobody calls Wait. After any error of the
  // session all `done` words are poisoned, and the error is what Wait says.
  virtual TicketFlags FlagsOf(Ticket) const { return {}; }

  // True when Wait would not block, or when only Wait can find out more (the server has ended and
  // may come back). Never blocks; takes in what the server has answered.
  virtual bool Test(Ticket ticket) = 0;
  // Blocks until the outcome is known. Errors: what the server answered, kWaitTimeout, kServerGone,
  // kSessionEnded, kPeerLost, kStatesLost.
  virtual Result<Outcome> Wait(Ticket ticket) = 0;

  // The order in which the next steps' forward first uses chunks; updates run in this order.
  // Advice: a wrong order costs time only.
  virtual Status DeclareSchedule(std::span<const ChunkId> order) = 0;
  // The server writes the fp32 weights of the sealed version `version` as one safetensors file
  // `name` into the directory, atomically. `dir_fd` is an O_PATH descriptor of a directory of the
  // same user. Blocks until done. Errors: kSaveFailed.
  virtual Status SaveWeights(int dir_fd, const std::string& name, Version version) = 0;
  // All states of the sealed version `version`, through memory that the server makes
  // (shm/state_stream.h): a descriptor for the process that writes them somewhere. Does not wait;
  // the next update of a chunk does, until that chunk was copied into this memory. One at a time,
  // and no SaveWeights meanwhile. Errors: kAbiMismatch (a server of an earlier release).
  virtual Result<UniqueFd> StreamStates(Version) {
    return Status(ErrorId::kAbiMismatch, "this service gives no states away");
  }
  // How what StreamStates asked for has ended: ok when all was copied, else why it will not be;
  // kServerGone: the server has ended, and nobody tells the process that reads. Nothing while the
  // server still copies.
  virtual std::optional<Status> StreamEnd() { return Status(); }
  // Orderly end of this rank. When all ranks of the job have left so, the job is removed.
  virtual Status Detach() = 0;
};

}  // namespace tidepool::client
