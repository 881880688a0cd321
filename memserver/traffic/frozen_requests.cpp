#include "memserver/traffic/frozen_requests.h"

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/traffic/rcache_content.h"

namespace tidepool::memserver {
namespace {

uint64_t BytesOfElements(const JobStates& states, ChunkId chunk, uint64_t elements) {
  return elements * BytesOf(states.spec().DTypeOf(chunk));
}

bool IsOp(const shm::Request& request, shm::Op op) {
  return request.op == static_cast<uint32_t>(op);
}

const char* CheckClaim(const shm::Request& request) {
  const bool is_bare = request.version == 0 && request.rcache_offset == 0 &&
                       request.element_begin == 0 && request.element_count == 0;
  return is_bare ? nullptr : "a claim names more than a chunk";
}

}  // namespace

const char* CheckFrozen(const JobStates& states, uint64_t rcache_bytes,
                        const shm::Request& request) {
  // It is refused in any case.
  if (IsOp(request, shm::Op::kSubmitGradient)) return nullptr;
  if (request.micro_batch != shm::UsesAhead(request))
    return "the micro-batch of this request is not zero";
  if (IsOp(request, shm::Op::kClaimFrozen)) return CheckClaim(request);

  const uint64_t elements = states.spec().Frozen(request.chunk).elements;
  if (request.element_count == 0) return "the element range is empty";
  if (request.element_begin > elements ||
      request.element_count > elements - request.element_begin) {
    return "the element range does not lie inside the chunk";
  }

  const uint64_t bytes = BytesOfElements(states, request.chunk, request.element_count);
  if (request.rcache_offset % BytesOfElements(states, request.chunk, 1) != 0)
    return "the rCache offset is not aligned to an element";
  if (request.rcache_offset > rcache_bytes || bytes > rcache_bytes - request.rcache_offset)
    return "the range does not lie inside the rCache";
  const bool is_put = IsOp(request, shm::Op::kPutWeights);
  if (is_put && request.version != 0) return "the version of a weight request is not zero";
  return nullptr;
}

Start StartClaim(JobStates* states, Session* session, JobId job, const shm::Request& request) {
  FrozenChunk* chunk = states->frozen(request.chunk).chunk;
  switch (states->frozen_table()->TakeClaim(chunk, session->id(), job, request.chunk)) {
    case FrozenTable::Claim::kAlreadyPresent: return Start::kAlreadyPresent;
    case FrozenTable::Claim::kYours: return Start::kDone;
    case FrozenTable::Claim::kWait: return Start::kWait;
    case FrozenTable::Claim::kRejected: return Start::kRejected;
  }
  TP_CHECK(false, "an answer to a claim");
  return Start::kWait;
}

Start StartFrozenPut(JobStates* states, Session* session, const shm::Request& request) {
  FrozenChunk* chunk = states->frozen(request.chunk).chunk;
  const bool written = chunk->sealed && TP_PLANTED("traffic.frozen_written");
  if (chunk->sealed && !written) return Start::kFrozen;
  if (chunk->uploader != session->id() && !written) return Start::kUploadLost;
  const uint64_t begin = BytesOfElements(*states, request.chunk, request.element_begin),
                 bytes = BytesOfElements(*states, request.chunk, request.element_count);
  if (begin != chunk->started && !written) return Start::kOutOfOrder;

  states->frozen_table()->StartPut(chunk, bytes);
  session->lane().Start({request, bytes, 0, false}, chunk->data + begin,
                        session->rcache() + request.rcache_offset);
  return Start::kStarted;
}

void EndFrozenPut(JobStates* states, Session* session, const Copy& copy) {
  session->bytes_d2h += copy.bytes;
  states->frozen_table()->EndPut(states->frozen(copy.request.chunk).chunk, copy.bytes);
}

Start StartFrozenFetch(JobStates* states, Session* session, const shm::Request& request) {
  FrozenUse& use = states->frozen(request.chunk);
  if (!use.chunk->sealed) return Start::kWait;
  ++use.fetches;
  const Copy copy{request, BytesOfElements(*states, request.chunk, request.element_count), 0,
                  false};
  const std::byte* from =
      use.chunk->data + BytesOfElements(*states, request.chunk, request.element_begin);
  session->lane().Start(copy, session->rcache() + request.rcache_offset, from);
  NoteRcacheContent(states, session, request, true);
  return Start::kStarted;
}

void EndFrozenFetch(JobStates* states, Session* session, const Copy& copy) {
  const bool holds = session->rcache_map().Holds(copy.request.chunk);
  if (holds) states->frozen(copy.request.chunk).ranks_cached |= uint64_t{1} << session->rank();
  session->bytes_h2d += copy.bytes;
}

void DropFrozen(JobStates* states, const shm::Request& request) {
  if (IsOp(request, shm::Op::kPutWeights))
    states->frozen_table()->DropPut(states->frozen(request.chunk).chunk);
}

}  // namespace tidepool::memserver
