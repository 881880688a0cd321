// The messages of the data plane: 64-byte ring entries that a trainer (client) and memserver
// exchange in shared memory.
//
// Plain, fixed-width, little-endian, versioned (docs/shm_protocol.md draws them). The reader copies
// an entry out of shared memory once, checks the copy, and uses only the copy. Numbers from a peer
// are indices, offsets and counts, never addresses.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace tidepool::shm {

// The version that this file, channel_layout.h, job_spec.h and frames.h describe. Any change of a
// struct there requires a new number; a program also speaks the version before if
// shm/own_protocols.cpp says so (shm/protocol.h).
inline constexpr uint32_t kAbiVersion = 10;
// The version before, which programs of this release speak too (5 to 7 were between releases):
// ranks bring no memory, and send neither a run label nor attempts.
inline constexpr uint32_t kAbiVersionBefore = 4;
// The first version in which a rank may bring its rCache (frames.h).
inline constexpr uint32_t kAbiBrought = 5;
// The first version in which a rank sends the label of its run, and receives that of the job's
// first rank (frames.h).
inline constexpr uint32_t kAbiNote = 6;
// The first version in which gradients and ends of steps name their attempt (kNamesAttempt), and a
// rank is told which one is open.
inline constexpr uint32_t kAbiAttempt = 7;
// The first version in which a step can carry numbers of parameter groups, and a list of parameters
// without a gradient (Op::kGroupNumbers, Op::kUntouched).
inline constexpr uint32_t kAbiNumbers = 8;
// The first version in which a job may accumulate its gradients itself (JobSpec::sums_gradients).
inline constexpr uint32_t kAbiSums = 9;
// The first version in which states can be exported from a job and imported into a new one:
// StreamStates (frames.h), Op::kBeginAt, and puts of moments.
inline constexpr uint32_t kAbiStates = 9;
// The first version in which a rank sends facts about a step (Op::kStepFacts).
inline constexpr uint32_t kAbiFacts = 9;
// The first version in which a gradient of zeros can be submitted without its bytes (kZeros).
inline constexpr uint32_t kAbiZeros = 10;
// The first version in which the gradients of sealed steps leave a job (StreamSteps in frames.h),
// and come in again (kSummed).
inline constexpr uint32_t kAbiSteps = 10;
// The first version in which a process that is no rank may ask for a job's states (AskStates).
inline constexpr uint32_t kAbiAsked = 10;
static_assert(kAbiBrought <= kAbiVersion && kAbiNote <= kAbiVersion && kAbiAttempt <= kAbiVersion &&
              kAbiNumbers <= kAbiVersion && kAbiSums <= kAbiVersion && kAbiStates <= kAbiVersion &&
              kAbiFacts <= kAbiVersion && kAbiZeros <= kAbiVersion && kAbiSteps <= kAbiVersion &&
              kAbiAsked <= kAbiVersion);

// The operation of a request.
enum class Op : uint32_t {
  // fp32 values of this rank's shard, from the rCache into the master plane (before training); or a
  // frozen chunk.
  kPutWeights = 1,
  kFetch = 2,  // parameters of a version, from the pool into the rCache
  // This rank's reduced gradient shard of one micro-batch, from the rCache into the gradient slot.
  kSubmitGradient = 3,
  // This rank has submitted all gradients of the step; answered when the step is sealed.
  kEndStep = 4,
  // Asks whether the frozen chunk is present. Answered with its bytes, or with 0: then this rank
  // must put them, from the start.
  kClaimFrozen = 5,
  // Numbers of one parameter group for the open step, replacing the job's. Every rank sends the
  // same ones. Answered together with the rank's end of the step, which follows it.
  kGroupNumbers = 6,
  // Parameters that no backward of the open step has reached on this rank. Answered likewise.
  kUntouched = 7,
  // Facts about the open step, for monitoring only. Answered likewise.
  kStepFacts = 8,
  // Starts a job without weights behind the step of a checkpoint. Every rank sends it, and gets the
  // answer, before its first put.
  kBeginAt = 9,
};
inline constexpr uint32_t kOpMin = 1, kOpMax = 9;

// The content of a put, in its micro_batch. Moments of a range are answered before its master is
// put, and are sent only if the chunk has them: a 32-bit word per element
// (base/formats/moment_words.h). Only 8-bit moments have scales.
inline constexpr uint32_t kPutMaster = 0, kPutMomentum = 1, kPutVariance = 2,
                          kPutMomentumScales = 3, kPutVarianceScales = 4;
inline constexpr uint32_t kPutMax = kPutVarianceScales;
// True for a plane of scales.
inline constexpr bool IsScales(uint32_t plane) {
  return plane == kPutMomentumScales || plane == kPutVarianceScales;
}
// True for the first moment and its scales; false for the second moment and its scales.
inline constexpr bool IsOfMomentum(uint32_t plane) {
  return plane == kPutMomentum || plane == kPutMomentumScales;
}

// The micro_batch of a kSubmitGradient that brings the sum of all micro-batches, in the type of the
// gradient slot (GradientSlotType): the gradient of a step that is made again from its log. It is
// the only one of its shard in the step. Since kAbiSteps.
inline constexpr uint32_t kSummed = UINT32_MAX;

// Set in `flags` of a request that was sent before, to a memserver that ended without answering it.
// If its effect is already in kept memory, the server answers it without applying it.
inline constexpr uint32_t kResubmitted = 1;
// Set in `flags` of a request of the open step (all except puts, fetches and claims) that names its
// attempt at the step of its version: the upper 24 bits hold the number. The first attempt at a
// step is 0. Each dropped attempt (a gradient was not finite or a rank was lost) is followed by the
// next number, modulo 2^24. A request of a dropped attempt never counts for another one. Optional:
// a rank that attached to a server of an earlier version knows its attempt from the next sealed
// step on. 0 in sessions of versions before kAbiAttempt.
inline constexpr uint32_t kNamesAttempt = 2;
// Set in `flags` of kSubmitGradient: the gradient is all zeros, and no byte is read; rcache_offset
// is 0. Since kAbiZeros, in sessions whose rCache the server made.
inline constexpr uint32_t kZeros = 4;
inline constexpr uint32_t kAttemptBits = 24;
inline constexpr uint32_t kAttemptMask = (uint32_t{1} << kAttemptBits) - 1;
inline constexpr uint32_t kAttemptShift = 32 - kAttemptBits;

// kPutWeights, kFetch, kSubmitGradient. Element ranges count elements of the whole chunk (all
// shards), not bytes. kClaimFrozen uses counter, op, chunk and flags only; all else is 0.
struct Request {
  // Counts the requests of this session from 1; identifies the request until its completion.
  uint64_t counter;
  uint32_t op;     // an Op
  uint32_t chunk;  // ChunkId
  // kFetch: version wanted (frozen: any); kSubmitGradient: version that the gradient was computed
  // from; kPutWeights: 0.
  uint64_t version;
  uint64_t rcache_offset;  // bytes from the start of the session's rCache memory
  uint64_t element_begin;  // first element in the chunk
  // kPutWeights reads 4-byte elements (frozen: in their own type), the others elements of the
  // chunk's dtype.
  uint64_t element_count;
  // kSubmitGradient: 0 .. micro_batches - 1, or kSummed; kFetch: see UsesAhead; kPutWeights:
  // kPutMaster to kPutMax (since kAbiStates); else 0.
  uint32_t micro_batch;
  uint32_t flags;  // kResubmitted; kSubmitGradient: also FlagsOfAttempt, kZeros; else 0
};

// Number of chunk uses in the rank's order before the one that this fetch is for; 0: the rank waits
// for it, or does not know. A hint for the order of copies, from ranks that brought their rCache. 0
// in all other requests (and in sessions of versions before kAbiBrought).
inline uint32_t UsesAhead(const Request& request) {
  return request.op == static_cast<uint32_t>(Op::kFetch) ? request.micro_batch : 0;
}

// True for a gradient that is the sum of all micro-batches.
inline bool IsSummed(const Request& request) {
  return request.op == static_cast<uint32_t>(Op::kSubmitGradient) && request.micro_batch == kSummed;
}

// kEndStep, in the same 56 bytes.
struct EndStepRequest {
  uint64_t counter;
  uint32_t op;
  float learning_rate;  // before the group's factor; finite, >= 0
  // Version that the step's gradients were computed from; sealing makes it version + 1.
  uint64_t version;
  uint64_t data_cursor;   // kept in the step record for a restart
  float loss_scale;       // gradients were multiplied by this; > 0, finite; 1 without scaling
  uint32_t scaler_steps;  // loss scaler's count of good steps, kept in the step record
  uint64_t random_state;  // trainer's random state, kept in the step record
  uint32_t reserved;      // 0
  uint32_t flags;         // kResubmitted, FlagsOfAttempt, or both; else 0
};

// kBeginAt, in the same 56 bytes: the contents of the step record.
struct BeginAtRequest {
  uint64_t counter;
  uint32_t op;
  float loss_scale;         // > 0, finite
  uint64_t version;         // from 1: version of the weights that are put
  uint64_t optimizer_step;  // <= version: number of steps not skipped
  uint64_t data_cursor;
  uint64_t random_state;
  uint32_t scaler_steps;
  uint32_t flags;  // kResubmitted, or 0
};

// kGroupNumbers, in the same 56 bytes: the wire form of GroupNumbers (base/formats/optimizer.h).
struct GroupNumbersRequest {
  uint64_t counter;
  uint32_t op;
  uint32_t group;
  uint64_t version;  // as in EndStepRequest
  float learning_rate, weight_decay;
  double beta1, beta2;
  float eps;
  uint32_t flags;  // as in EndStepRequest
};

// kUntouched, in the same 56 bytes: the `run` parameters from `first` on, and, of those behind
// them, each whose bit is set.
struct UntouchedRequest {
  uint64_t counter;
  uint32_t op;
  uint32_t first;    // ParameterId
  uint64_t version;  // as in EndStepRequest
  uint64_t bits[3];
  uint32_t run;
  uint32_t flags;  // as in EndStepRequest
};

// kStepFacts, in the same 56 bytes.
struct StepFactsRequest {
  uint64_t counter;
  uint32_t op;
  float loss;            // the step's mean loss; any value
  uint64_t version;      // as in EndStepRequest
  uint64_t tokens;       // of all ranks; below 2^48
  uint64_t reserved[2];  // 0
  uint32_t cpus_shared;  // 1: the rank's threads shared CPUs with others at the end of the step
  uint32_t flags;        // as in EndStepRequest
};

// The part of `flags` that names this attempt; kResubmitted may be added.
constexpr uint32_t FlagsOfAttempt(uint32_t attempt) {
  return kNamesAttempt | (attempt & kAttemptMask) << kAttemptShift;
}
// The attempt that `flags` name, if any, and the number of the one after it.
constexpr std::optional<uint32_t> AttemptIn(uint32_t flags) {
  return (flags & kNamesAttempt) != 0 ? std::optional(flags >> kAttemptShift) : std::nullopt;
}
constexpr uint32_t AttemptAfter(uint32_t attempt) {
  return (attempt + 1) & kAttemptMask;
}
// Numbers wrap around: of two attempts the later one is less than half the range ahead.
constexpr bool IsBefore(uint32_t attempt, uint32_t other) {
  return attempt != other && ((other - attempt) & kAttemptMask) <= kAttemptMask / 2;
}
// True for a request that was sent before, to a server that ended.
constexpr bool IsResent(uint32_t flags) {
  return (flags & kResubmitted) != 0;
}

// True for a gradient that is submitted without bytes.
inline bool IsZeros(const Request& request) {
  return request.op == static_cast<uint32_t>(Op::kSubmitGradient) && (request.flags & kZeros) != 0;
}

// The answer to one request.
struct Completion {
  uint64_t counter;  // of the request that it answers
  uint32_t op;
  uint32_t error;    // 0, or an error number of the catalogue (base/error_catalog.h)
  uint64_t version;  // kFetch: version delivered; kEndStep: the new version
  uint64_t bytes;    // bytes copied for this request; kClaimFrozen: bytes present
  // kEndStep: global norm of the unscaled gradients before clipping; NaN or infinity on overflow.
  double grad_norm;
  uint32_t skipped;    // kEndStep: 1 when a gradient was not finite and no parameter changed
  uint32_t reserved;   // 0
  uint64_t reserved2;  // 0
};

inline constexpr uint32_t kPayloadBytes = 56;
inline constexpr uint32_t kPayloadWords = kPayloadBytes / 8;

static_assert(sizeof(Request) == kPayloadBytes && sizeof(EndStepRequest) == kPayloadBytes &&
              sizeof(GroupNumbersRequest) == kPayloadBytes &&
              sizeof(UntouchedRequest) == kPayloadBytes &&
              sizeof(StepFactsRequest) == kPayloadBytes && sizeof(Completion) == kPayloadBytes);
static_assert(sizeof(BeginAtRequest) == kPayloadBytes &&
              std::is_trivially_copyable_v<BeginAtRequest>);
static_assert(std::is_trivially_copyable_v<Request> &&
              std::is_trivially_copyable_v<EndStepRequest> &&
              std::is_trivially_copyable_v<GroupNumbersRequest> &&
              std::is_trivially_copyable_v<UntouchedRequest> &&
              std::is_trivially_copyable_v<StepFactsRequest> &&
              std::is_trivially_copyable_v<Completion>);
static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

// Reads the 56 bytes of a slot as another kind of request; `op` says which kind they are.
inline EndStepRequest AsEndStep(const Request& request) {
  return std::bit_cast<EndStepRequest>(request);
}
inline Request AsRequest(const EndStepRequest& request) {
  return std::bit_cast<Request>(request);
}
inline BeginAtRequest AsBeginAt(const Request& request) {
  return std::bit_cast<BeginAtRequest>(request);
}
inline Request AsRequest(const BeginAtRequest& request) {
  return std::bit_cast<Request>(request);
}
// True for requests that are answered when their step has ended, and have no effect by themselves.
inline bool IsStepNumbers(const Request& request) {
  return request.op == static_cast<uint32_t>(Op::kGroupNumbers) ||
         request.op == static_cast<uint32_t>(Op::kUntouched) ||
         request.op == static_cast<uint32_t>(Op::kStepFacts);
}

}  // namespace tidepool::shm
