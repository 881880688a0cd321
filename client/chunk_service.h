// ChunkService: how a trainer fetches chunks from a memory server and submits gradients (a virtual
// seam: MemClient over shared memory, a fake in tests).
//
// One thread (the trainer's main thread) calls all methods of an object; none is re-entrant. Every
// Start... call sends one request and returns a ticket at once. Each ticket's outcome must be taken
// exactly once, by Wait. At most kTicketsMax tickets are in flight. The rCache ranges named in a
// request belong to the server from the call until its outcome is known. After any error of class
// kUnavailable the session is over: every later call returns the same error.
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

// Two flag words that order a ticket's copy with the trainer's streams, without a CPU
// (docs/gpu.md). Both compare cyclically.
struct TicketFlags {
  // The trainer's streams or CPU store `value`: the server may copy.
  std::atomic<uint64_t>* ready = nullptr;
  // The server's stream stores `value` after the copy; INT64_MAX: the session is over.
  std::atomic<uint64_t>* done = nullptr;
  uint64_t value = 0;
};

// Resources granted at attach. The memory lives until the service is destroyed.
struct Attachment {
  SessionId session = 0;
  JobId job = 0;
  std::byte* rcache = nullptr;  // rcache_bytes of memory mapped by both processes; 4 KiB aligned
  uint64_t rcache_bytes = 0;
  // StartSubmitZeros works.
  bool takes_zeros = false;
  bool weights_ready = false;  // the job already has weights (attached to an existing job)
  Version sealed_version = 0;  // last sealed step of that job
  uint64_t data_cursor = 0;    // from its step record
  float loss_scale = 1;        // from its step record, before that step's verdict
  uint32_t scaler_steps = 0;
  uint64_t random_state = 0;
  bool last_skipped = false;  // that step's verdict: gradients overflowed, nothing changed
  uint64_t pool_bytes = 0;    // host memory of the job's states
  // ClientOptions::run_note of the job's first rank; empty if it, or the server, had none.
  std::string note = {};
  // Both sides' flag words if the rCache is device memory, to be registered with the device (whole
  // pages); null on the host.
  std::byte* flags = nullptr;
  uint64_t flags_bytes = 0;
};

// Elements of a chunk, and their location in the rCache.
struct Range {
  ChunkId chunk = 0;
  uint64_t element_begin = 0;  // in the chunk
  uint64_t element_count = 0;
  uint64_t rcache_offset = 0;  // bytes
  // For puts only: 0 weights, 1 exp_avg (or momentum), 2 exp_avg_sq; 3, 4: scales of 8-bit moments.
  uint32_t plane = 0;
};

// The step after which a job begins whose states come from a checkpoint.
struct BeginPoint {
  Version version = 0;          // of the states put afterwards; from 1
  uint64_t optimizer_step = 0;  // the number of those steps that were not skipped
  uint64_t data_cursor = 0;
  float loss_scale = 1;
  uint32_t scaler_steps = 0;
  uint64_t random_state = 0;
};

// The version that a fetch wants, and how soon.
struct Wanted {
  // By default as soon as possible.
  Wanted(Version wanted, uint32_t uses = 0) : version(wanted), uses_ahead(uses) {}
  Version version;
  // Number of this rank's chunk uses before the one that the fetch is for; 0: the rank waits for
  // it, or cannot tell. A hint: a wrong number costs only time.
  uint32_t uses_ahead;
};

// One parameter group's hyperparameters for one step.
struct GroupStep {
  uint32_t group = 0;
  GroupNumbers numbers;
};

// A rank's statement at the end of a step.
struct StepEnd {
  Version version = 0;      // the version from which the gradients were computed
  float learning_rate = 0;  // before the parameter group's factor
  float loss_scale = 1;
  uint64_t data_cursor = 0;
  uint32_t scaler_steps = 0;
  uint64_t random_state = 0;
  // Replace the job's hyperparameters in this step only; equal on all ranks, and valid by
  // tidepool::WhyBad.
  std::span<const GroupStep> groups = {};
  // The parameters that no backward of the step has reached on this rank, as a bit set
  // (shm/step_numbers.h); empty: all are reached. A parameter that no rank of its data-parallel
  // group has reached stays unchanged. Servers of earlier releases take its gradient as zero.
  std::span<const uint64_t> untouched = {};
  // Statistics of the step, if this rank reports them (one of the job's ranks is enough). Not sent
  // to servers of earlier releases.
  std::optional<shm::StepFacts> facts = {};
};

// The result of a request.
struct Outcome {
  Version version = 0;   // fetch: delivered; end of step: the new one
  uint64_t bytes = 0;    // number copied
  double grad_norm = 0;  // end of step: norm of the unscaled gradients, before clipping
  bool skipped = false;  // end of step: overflow, nothing changed
};

class ChunkService {
 public:
  virtual ~ChunkService() = default;
  // The resources granted to the session.
  virtual const Attachment& attachment() const = 0;

  // Makes the fp32 values at range.rcache_offset (element_count x 4 bytes) the master weights. A
  // rank puts exactly its shards, each in increasing order without gaps, and chunks in increasing
  // order if their weights are on NVMe only; the job is ready when all ranks have put all shards.
  virtual Result<Ticket> StartPutWeights(const Range& range) = 0;
  // Begins a job without weights at this point. All ranks pass the same point, and wait for the
  // answer before their first put. Moments may then be put too (Range::plane), those of a range
  // before its weights. Errors: kAbiMismatch (a server of an earlier release); of the ticket:
  // kConfigBadValue (states outside the host pool).
  virtual Result<Ticket> StartBeginAt(const BeginPoint&) {
    return Status(ErrorId::kAbiMismatch, "this service begins at no step but the first");
  }
  // Copies the parameters of that version (the chunk's dtype) to range.rcache_offset. Completes
  // when that version exists; a version that is already overwritten is an error
  // (kProtocolViolation).
  virtual Result<Ticket> StartFetch(const Range& range, const Wanted& wanted) = 0;
  // Submits the gradient shard at range.rcache_offset (the chunk's dtype), exactly this rank's
  // shard; each chunk once per micro-batch, in order.
  virtual Result<Ticket> StartSubmitGradient(const Range& range, Version version,
                                             uint32_t micro_batch) = 0;
  // The same for a gradient of zeros, of which no byte travels: `range` names the shard, and no
  // memory. Requires Attachment::takes_zeros.
  virtual Result<Ticket> StartSubmitZeros(const Range&, Version, uint32_t) {
    return Status(ErrorId::kAbiMismatch, "this service takes no gradient without bytes");
  }
  // Submits the sum of all micro-batches, in the type of the gradient slot (GradientSlotType), in
  // place of the micro-batches of this shard and step: a gradient from a log of steps. Errors:
  // kAbiMismatch (a server of an earlier release).
  virtual Result<Ticket> StartSubmitSum(const Range&, Version) {
    return Status(ErrorId::kAbiMismatch, "this service takes no sums of gradients");
  }
  // Ends the step. Completes when all ranks have ended it and it is sealed (or skipped); parameters
  // are updated after that. Errors: kAbiMismatch (groups, and a server of an earlier release),
  // kUsageError (more unreached parameters than can be sent).
  virtual Result<Ticket> StartEndStep(const StepEnd& end) = 0;

  // If the attachment has flags: those of a StartFetch or StartSubmitGradient ticket, valid until
  // kTicketsMax later ones were started. The server begins the copy only when `ready` has reached
  // `value`; `done` follows the copy, even if nobody calls Wait. After any error of the session all
  // `done` words are poisoned, and Wait returns the error.
  virtual TicketFlags FlagsOf(Ticket) const { return {}; }

  // True when Wait would not block, or when only Wait can find out more (the server has ended and
  // may come back). Never blocks; processes the server's answers.
  virtual bool Test(Ticket ticket) = 0;
  // Blocks until the outcome is known. Errors: the server's, kWaitTimeout, kServerGone,
  // kSessionEnded, kPeerLost, kStatesLost.
  virtual Result<Outcome> Wait(Ticket ticket) = 0;

  // Declares the order in which the next steps' forward first uses chunks; updates run in this
  // order. A hint: a wrong order costs only time.
  virtual Status DeclareSchedule(std::span<const ChunkId> order) = 0;
  // Makes the server write the fp32 weights of the sealed version `version` atomically as one
  // safetensors file `name` in the directory. `dir_fd` is an O_PATH descriptor of a directory of
  // the same user. Blocks until done. Errors: kSaveFailed.
  virtual Status SaveWeights(int dir_fd, const std::string& name, Version version) = 0;
  // Streams all states of the sealed version `version` through memory that the server makes
  // (shm/state_stream.h). Returns its descriptor, for the process that writes them, before anything
  // is copied; the next update of each chunk waits until the chunk has been copied there. Waits
  // until an earlier stream has ended. Errors: kAbiMismatch (a server of an earlier release),
  // kSaveFailed (the earlier stream goes on).
  virtual Result<UniqueFd> StreamStates(Version) {
    return Status(ErrorId::kAbiMismatch, "this service gives no states away");
  }
  // How StreamStates has ended: ok when everything was copied, else the error; kServerGone: the
  // server has ended, and nobody tells the reading process. nullopt while the server still copies.
  virtual std::optional<Status> StreamEnd() { return Status(); }
  // Streams the gradients and records of all steps behind the sealed version `version` through
  // memory that the server makes (shm/state_stream.h), until this rank leaves. Returns its
  // descriptor, for the process that logs them. Does not block; from now on each update of a chunk
  // waits until the step's gradients have been copied there. One at a time. Errors: kAbiMismatch (a
  // server of an earlier release).
  virtual Result<UniqueFd> StreamSteps(Version) {
    return Status(ErrorId::kAbiMismatch, "this service gives no steps away");
  }
  // How StreamSteps has ended, as StreamEnd.
  virtual std::optional<Status> StepsEnd() { return Status(); }
  // Orderly end of this rank. When all ranks of the job have detached, the job is removed.
  virtual Status Detach() = 0;
};

}  // namespace tidepool::client
