#include "memserver/traffic/request_check.h"

#include <cmath>
#include <optional>

#include "base/hot.h"
#include "base/planted.h"

namespace tidepool::memserver {
namespace {

// Far beyond any training, far below the largest version.
constexpr Version kBeginVersionsMax = Version{1} << 40;
constexpr uint64_t kWeightBytes = 4;  // weights are put as fp32

bool IsExactShard(const JobStates& states, const Chunk& chunk, Rank rank,
                  const shm::Request& request) {
  return request.element_begin == states.ShardBegin(request.chunk, rank) &&
         request.element_count == chunk.shard_elements;
}

uint64_t ElementBytes(const JobStates& states, const shm::Request& request) {
  const auto op = static_cast<shm::Op>(request.op);
  if (op == shm::Op::kPutWeights) return kWeightBytes;
  const shm::JobSpec& spec = states.spec();
  return BytesOf(op == shm::Op::kSubmitGradient
                     ? shm::SubmittedType(spec, request.chunk, shm::IsSummed(request))
                     : spec.DTypeOf(request.chunk));
}

// The order of the moments does not matter, since each has its own plane.
const char* CheckMoment(JobStates& states, const Chunk& chunk, Rank rank,
                        const shm::Request& request) {
  const uint64_t begin = states.ShardBegin(request.chunk, rank),
                 done = states.intake(request.chunk, rank).put_elements;
  if (request.element_begin < begin + done && !TP_PLANTED("traffic.moment_behind_master"))
    return "a moment came behind the weights of its range";
  if (request.element_begin + request.element_count > begin + chunk.shard_elements)
    return "the moments do not lie inside the rank's shard";

  const uint32_t plane = request.micro_batch;
  const OptimizerSpec& optimizer = states.spec().optimizer;
  const bool has = shm::IsOfMomentum(plane) ? NeedsMomentum(optimizer) : NeedsVariance(optimizer);
  if (!has || (shm::IsScales(plane) && chunk.states != StateForm::kSplit8))
    return "the chunk has no such moment";
  if (chunk.is_split() && request.element_count * sizeof(float) > shm::kSplitPutBytesMax)
    return "the moments are more than are staged at once";
  return nullptr;
}

}  // namespace

std::byte* MomentPlane(const Chunk& chunk, uint32_t plane) {
  std::byte* const moment =
      shm::IsOfMomentum(plane) ? chunk.planes.momentum : chunk.planes.variance;
  return shm::IsScales(plane) ? moment + ScalesOffset(chunk.elements) : moment;
}

TP_HOT const char* CheckFlags(const shm::Request& request, uint32_t protocol) {
  const auto op = static_cast<shm::Op>(request.op);
  const bool has_attempt =
      op == shm::Op::kSubmitGradient || op == shm::Op::kEndStep || shm::IsStepNumbers(request);
  const bool names = has_attempt && protocol >= shm::kAbiAttempt && shm::AttemptIn(request.flags);
  const bool may_be_zeros = op == shm::Op::kSubmitGradient && protocol >= shm::kAbiZeros;
  const uint32_t known = shm::kResubmitted | (names ? shm::FlagsOfAttempt(shm::kAttemptMask) : 0) |
                         (may_be_zeros ? shm::kZeros : 0);
  return (request.flags & ~known) != 0 ? "a reserved flag is set" : nullptr;
}

OfAttempt AttemptOf(const JobStates& states, uint32_t flags) {
  const std::optional<uint32_t> named = shm::AttemptIn(flags);
  if (!named || *named == states.attempt() || TP_PLANTED("traffic.attempt_not_compared"))
    return OfAttempt::kOpen;
  return shm::IsBefore(*named, states.attempt()) ? OfAttempt::kDropped : OfAttempt::kToCome;
}

TP_HOT const char* CheckRange(const JobStates& states, Rank rank, uint64_t rcache_bytes,
                              const shm::Request& request) {
  if (request.chunk >= states.spec().chunks.size()) return "the job has no such chunk";
  if (!states.spec().IsMember(request.chunk, rank))
    return "the rank is not a member of the chunk's data-parallel group";
  const uint64_t elements = states.spec().chunks[request.chunk].elements;
  if (request.element_count == 0) return "the element range is empty";
  if (request.element_begin > elements ||
      request.element_count > elements - request.element_begin) {
    return "the element range does not lie inside the chunk";
  }
  // A chunk has at most 2^56 elements, so the product does not overflow.
  const uint64_t element_bytes = ElementBytes(states, request);
  const uint64_t bytes = request.element_count * element_bytes;
  if (request.rcache_offset % element_bytes != 0)
    return "the rCache offset is not aligned to an element";
  if (request.rcache_offset > rcache_bytes ||
      bytes > rcache_bytes - request.rcache_offset +
                  (TP_PLANTED("traffic.rcache_end_off_by_one") ? element_bytes : 0)) {
    return "the range does not lie inside the rCache";
  }

  const bool is_gradient = request.op == static_cast<uint32_t>(shm::Op::kSubmitGradient);
  const bool is_put = request.op == static_cast<uint32_t>(shm::Op::kPutWeights);
  if (is_put && request.micro_batch > shm::kPutMax) return "a put names a plane that there is not";
  if (!is_gradient && !is_put && request.micro_batch != shm::UsesAhead(request))
    return "the micro-batch of this request is not zero";
  return nullptr;
}

const char* CheckPut(JobStates& states, Rank rank, const shm::Request& request) {
  const Chunk& chunk = states.chunk(request.chunk);
  const uint64_t done = states.intake(request.chunk, rank).put_elements;
  if (request.version != 0) return "the version of a weight request is not zero";
  if (states.weights_ready()) return "the job has its weights already";
  if (request.micro_batch != shm::kPutMaster) return CheckMoment(states, chunk, rank, request);

  if (request.element_begin != states.ShardBegin(request.chunk, rank) + done)
    return "weights are not put in order from the shard's start";
  if (!states.weights().IsPutInOrder(request.chunk, rank))
    return "weights that are kept on NVMe alone are not put in the order of their chunks";
  if (request.element_count > chunk.shard_elements - done)
    return "the weights do not lie inside the rank's shard";
  if (chunk.is_split() && request.element_count * sizeof(float) > shm::kSplitPutBytesMax)
    return "the weights are more than are staged at once";
  return nullptr;
}

TP_HOT const char* CheckFetch(JobStates& states, const shm::Request& request) {
  const Chunk& chunk = states.chunk(request.chunk);
  if (request.version < states.sealed_version())
    return "the version asked for is already overwritten";
  if (request.version > states.sealed_version() + 1)
    return "the version asked for is more than one step ahead";
  if (chunk.version != kNoVersion && request.version < chunk.version)
    return "the version asked for is already overwritten";
  return nullptr;
}

const char* CheckGradient(JobStates& states, Rank rank, const shm::Request& request) {
  const Chunk& chunk = states.chunk(request.chunk);
  const ShardIntake& intake = states.intake(request.chunk, rank);

  if (!states.weights_ready()) return "a gradient came before the weights";
  if (request.version != states.sealed_version())
    return "the gradient belongs to another version than the open step";
  if (AttemptOf(states, request.flags) != OfAttempt::kOpen)
    return "the gradient belongs to another attempt than the open one";
  if (!IsExactShard(states, chunk, rank, request))
    return "the gradient is not exactly the rank's shard";

  if (shm::IsSummed(request))
    return intake.micro_batches_accepted == 0
               ? nullptr
               : "a sum of all micro-batches came behind one of them";
  if (request.micro_batch >= states.spec().micro_batches) return "the step has no such micro-batch";
  if (request.micro_batch != intake.micro_batches_accepted)
    return "micro-batches of a chunk are out of order";
  return nullptr;
}

bool HasUsableNumbers(const shm::EndStepRequest& request) {
  const bool rate = std::isfinite(request.learning_rate) && request.learning_rate >= 0;
  return rate && std::isfinite(request.loss_scale) && request.loss_scale > 0;
}

const char* CheckOpenStep(const JobStates& states, Version version, uint32_t flags) {
  if (!states.weights_ready()) return "a step ended before the weights came";
  if (version != states.sealed_version()) return "the step that ends is not the open one";
  if (AttemptOf(states, flags) != OfAttempt::kOpen)
    return "the attempt that ends is not the open one";
  return nullptr;
}

const char* CheckEndStep(const JobStates& states, const shm::EndStepRequest& request) {
  if (request.reserved != 0) return "a reserved field is not zero";
  return CheckOpenStep(states, request.version, request.flags);
}

const char* CheckBeginAt(const JobStates& states, const shm::BeginAtRequest& request) {
  if (request.version == 0 || request.version >= kBeginVersionsMax)
    return "a job begins at a version that there is not";
  if (request.optimizer_step > request.version) return "a job begins with more updates than steps";
  if (!std::isfinite(request.loss_scale) || request.loss_scale <= 0)
    return "a job begins with a loss scale that nothing can be divided by";
  if (states.table().any_put()) {
    const StepRecord& last = states.last_step();

    const bool same = states.sealed_version() == request.version &&
                      last.optimizer_step == request.optimizer_step &&
                      last.data_cursor == request.data_cursor;
    return same ? nullptr : "a rank begins at another step than the weights that are there";
  }
  return nullptr;
}

}  // namespace tidepool::memserver
