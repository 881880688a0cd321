#include "memserver/loop/dispatcher.h"

#include <array>

#include "base/buggify.h"
#include "base/check.h"
#include "base/hot.h"
#include "base/point.h"
#include "memserver/loop/resent_requests.h"
#include "memserver/loop/step_requests.h"
#include "memserver/traffic/frozen_requests.h"
#include "memserver/traffic/request_check.h"
#include "memserver/traffic/transfers.h"

namespace tidepool::memserver {
namespace {

using shm::Request;

// In a broken run puts, gradients and ends of steps are always answered with kPeerLost, because
// their counts are meaningless.
const char* CheckPutRequest(SessionSlot* slot, const Request& request) {
  if (slot->job->run_broken()) return nullptr;
  const char* why = CheckPut(*slot->job->states, slot->rank, request);
  if (why == nullptr && request.micro_batch == shm::kPutMaster)
    slot->job->states->intake(request.chunk, slot->rank).put_elements += request.element_count;
  return why;
}

Start StartPutRequest(SessionSlot* slot, const Request& request) {
  if (slot->job->run_broken()) return Start::kPeerLost;
  return StartPut(slot->job->states.get(), slot->session.get(), request);
}

void EndPutRequest(SessionSlot* slot, const Copy& copy) {
  Job* job = slot->job;
  const bool shard_in = EndPut(job->states.get(), slot->session.get(), copy);
  if (copy.to_staging) job->NoteProgress(JobProgress::kPutStagingFree);
  const bool narrows = job->states->chunk(copy.request.chunk).narrows();
  if (shard_in && narrows) job->narrows.Push({copy.request.chunk, slot->rank});
  if (shard_in && !narrows) CountLoadedShard(job, copy.request.chunk);
  Answer(slot, Success(copy.request, copy.bytes));
}

TP_HOT const char* CheckFetchRequest(SessionSlot* slot, const Request& request) {
  JobStates& states = *slot->job->states;
  const char* why = CheckFetch(states, request);
  if (why == nullptr && states.window().Covers(request.chunk))
    states.window().uses().Note(slot->rank, request.chunk, request.version);
  return why;
}

void CountFetch(Job* job, const Request& request) {
  ++job->open_traffic.fetches;
  job->open_traffic.bytes += request.element_count * BytesOf(job->spec().DTypeOf(request.chunk));
}

TP_HOT Start StartFetchRequest(SessionSlot* slot, const Request& request) {
  JobStates& states = *slot->job->states;
  // A broken run makes no further step, and weights that a lost rank did not put stay incomplete.
  // No chunk is fetched before all weights have arrived, not even a complete one.
  const bool never_comes = request.version > states.sealed_version() || !states.weights_ready();
  if (slot->job->run_broken() && never_comes) return Start::kPeerLost;
  const Start start = StartFetch(&states, slot->session.get(), request);
  if (start == Start::kStarted) CountFetch(slot->job, request);
  return start;
}

TP_HOT void EndFetchRequest(SessionSlot* slot, const Copy& copy) {
  EndFetch(slot->job->states.get(), slot->session.get(), copy);
  Answer(slot, Success(copy.request, copy.bytes));
}

const char* CheckGradientRequest(SessionSlot* slot, const Request& request) {
  Job* job = slot->job;
  if (job->run_broken()) return nullptr;
  if (job->step.HasEnded(slot->rank)) return "a gradient came after the rank had ended the step";
  const char* why = CheckGradient(*job->states, slot->rank, request);
  if (why == nullptr) job->intake.Accept(slot->rank, request);
  return why;
}

Start StartGradientRequest(SessionSlot* slot, const Request& request) {
  if (slot->job->run_broken()) return Start::kPeerLost;
  return slot->job->intake.StartGradient(slot->session.get(), request);
}

void EndGradientRequest(SessionSlot* slot, const Copy& copy) {
  const bool counts = slot->job->intake.EndGradient(slot->session.get(), copy);
  slot->session->WriteDone(copy.request.counter);
  const uint64_t came = shm::IsZeros(copy.request) ? 0 : copy.bytes;
  Answer(slot, counts ? Success(copy.request, came) : Failure(copy.request, ErrorId::kPeerLost));
}

// --- frozen chunks ---

const char* CheckFrozenRequest(SessionSlot* slot, const Request& request) {
  return CheckFrozen(*slot->job->states, slot->session->rcache_bytes(), request);
}

Start StartClaimRequest(SessionSlot* slot, const Request& request) {
  return StartClaim(slot->job->states.get(), slot->session.get(), slot->job->id, request);
}

Start StartFrozenPutRequest(SessionSlot* slot, const Request& request) {
  return StartFrozenPut(slot->job->states.get(), slot->session.get(), request);
}

void EndFrozenPutRequest(SessionSlot* slot, const Copy& copy) {
  EndFrozenPut(slot->job->states.get(), slot->session.get(), copy);
  Answer(slot, Success(copy.request, copy.bytes));
}

Start StartFrozenFetchRequest(SessionSlot* slot, const Request& request) {
  const Start start = StartFrozenFetch(slot->job->states.get(), slot->session.get(), request);
  if (start == Start::kStarted) CountFetch(slot->job, request);
  return start;
}

void EndFrozenFetchRequest(SessionSlot* slot, const Copy& copy) {
  EndFrozenFetch(slot->job->states.get(), slot->session.get(), copy);
  Answer(slot, Success(copy.request, copy.bytes));
}

Start RefuseFrozenGradient(SessionSlot*, const Request&) {
  return Start::kFrozen;
}

// One row for each operation that copies elements, indexed by its number.
struct CopyOp {
  // Called once per request; null if it is sound.
  const char* (*check)(SessionSlot* slot, const Request& request);
  Start (*start)(SessionSlot* slot, const Request& request);  // again while it returns kWait
  void (*end)(SessionSlot* slot, const Copy& copy);
};
constexpr std::array<CopyOp, 3> kCopyOps = {{
    {CheckPutRequest, StartPutRequest, EndPutRequest},
    {CheckFetchRequest, StartFetchRequest, EndFetchRequest},
    {CheckGradientRequest, StartGradientRequest, EndGradientRequest},
}};
static_assert(static_cast<uint32_t>(shm::Op::kPutWeights) == 1 &&
              static_cast<uint32_t>(shm::Op::kFetch) == 2 &&
              static_cast<uint32_t>(shm::Op::kSubmitGradient) == 3);

// The operations on frozen chunks. Requests about a step name no chunk.
constexpr std::array<CopyOp, 5> kFrozenOps = {{
    {CheckFrozenRequest, StartFrozenPutRequest, EndFrozenPutRequest},
    {CheckFrozenRequest, StartFrozenFetchRequest, EndFrozenFetchRequest},
    {CheckFrozenRequest, RefuseFrozenGradient, nullptr},
    {nullptr, nullptr, nullptr},
    {CheckFrozenRequest, StartClaimRequest, nullptr},
}};
static_assert(static_cast<uint32_t>(shm::Op::kClaimFrozen) == kFrozenOps.size());

const CopyOp& RowOf(const SessionSlot* slot, const Request& request) {
  return slot->job->spec().IsFrozen(request.chunk) ? kFrozenOps[request.op - 1]
                                                   : kCopyOps[request.op - 1];
}

// Answers or starts the request; true if it must (still) wait.
TP_HOT bool StartOrWait(SessionSlot* slot, const Request& request) {
  switch (RowOf(slot, request).start(slot, request)) {
    case Start::kStarted: return false;
    case Start::kWait: return true;
    case Start::kTooLate:
      slot->violation = "the version asked for is already overwritten";
      return false;
    case Start::kPeerLost: Answer(slot, Failure(request, ErrorId::kPeerLost)); return false;
    case Start::kDone: Answer(slot, Success(request, 0)); return false;

    case Start::kAlreadyPresent:
      Answer(slot, Success(request, slot->job->states->frozen(request.chunk).chunk->name.bytes));
      return false;
    case Start::kFrozen: Answer(slot, Failure(request, ErrorId::kChunkFrozen)); return false;
    case Start::kUploadLost: Answer(slot, Failure(request, ErrorId::kUploadLost)); return false;
    case Start::kRejected: Answer(slot, Failure(request, ErrorId::kContentMismatch)); return false;
    case Start::kOutOfOrder:
      slot->violation = "the bytes of a frozen chunk are not put in order from its start";
      return false;
  }

  TP_CHECK(false, "an outcome of Start");
  return false;
}

}  // namespace

TP_HOT bool Dispatcher::TakeRequests(SessionSlot* slot, uint32_t requests_max) {
  Request request;
  uint32_t taken = 0;
  if (TP_BUGGIFY("dispatcher.one_request")) requests_max = 1;

  while (taken < requests_max && slot->violation == nullptr) {
    const shm::PopResult popped = slot->session->Take(&request, &slot->violation);
    if (popped != shm::PopResult::kItem) break;
    ++taken;
    TP_POINT("server.request_taken");
    Handle(slot, request);
  }

  if (slot->violation != nullptr) ++consequences_;
  return taken > 0 || slot->violation != nullptr;
}

namespace {

// The first protocol version that has this operation.
uint32_t FirstWith(uint32_t op) {
  switch (static_cast<shm::Op>(op)) {
    case shm::Op::kGroupNumbers:
    case shm::Op::kUntouched: return shm::kAbiNumbers;
    case shm::Op::kStepFacts: return shm::kAbiFacts;
    case shm::Op::kBeginAt: return shm::kAbiStates;
    default: return 0;
  }
}

}  // namespace

TP_HOT void Dispatcher::Handle(SessionSlot* slot, const Request& request) {
  const uint32_t protocol = slot->session->port().protocol();
  const bool too_new = shm::IsSummed(request) && protocol < shm::kAbiSteps;
  if (request.op < shm::kOpMin || request.op > shm::kOpMax || protocol < FirstWith(request.op) ||
      too_new) {
    slot->violation = "the operation is unknown";
    return;
  }
  slot->violation = CheckFlags(request, protocol);
  if (slot->violation != nullptr) return;

  if (IsOfStep(request)) {
    ++consequences_;
    return HandleStepRequest(slot, request);
  }
  if (shm::UsesAhead(request) != 0 && !slot->session->is_brought()) {
    slot->violation = "a fetch into memory that the server made says how soon it is used";
    return;
  }

  if (shm::IsZeros(request) && (slot->session->is_brought() || request.rcache_offset != 0)) {
    slot->violation = "a gradient of zeros names memory";
    return;
  }

  if (slot->job->spec().IsFrozen(request.chunk)) return StartChecked(slot, request);
  if (request.op == static_cast<uint32_t>(shm::Op::kClaimFrozen)) {
    slot->violation = "a chunk is claimed that is not frozen";
    return;
  }
  const char* why =
      CheckRange(*slot->job->states, slot->rank, slot->session->rcache_bytes(), request);
  if (why == nullptr && shm::IsResent(request.flags) && IsApplied(slot, request)) {
    Answer(slot, Success(request, 0));
    TP_POINT("server.resubmit_answered");
    return;
  }

  if (why == nullptr && shm::IsResent(request.flags) && IsPassedOver(*slot->job, request)) {
    Answer(slot, Failure(request, ErrorId::kVersionGone));
    return;
  }
  if (why == nullptr) return StartChecked(slot, request);
  slot->violation = why;
}

// Checks the operation's own rules, then starts the request, or parks it.
TP_HOT void Dispatcher::StartChecked(SessionSlot* slot, const Request& request) {
  slot->violation = RowOf(slot, request).check(slot, request);
  if (slot->violation != nullptr) return;
  if (request.op != static_cast<uint32_t>(shm::Op::kFetch)) ++consequences_;

  Session& session = *slot->session;
  if (session.IsOrdered(request)) {
    const shm::JobSpec& spec = slot->job->spec();
    const bool is_gradient = request.op == static_cast<uint32_t>(shm::Op::kSubmitGradient);
    const DType dtype = is_gradient
                            ? shm::SubmittedType(spec, request.chunk, shm::IsSummed(request))
                            : spec.DTypeOf(request.chunk);
    return session.Hold(request, request.element_count * BytesOf(dtype));
  }

  if (!session.waiting().IsBehind(request) && !StartOrWait(slot, request)) return;
  ++consequences_;
  session.waiting().Add(request);
  session.waits.Begin(request, clock_->NowNs());
  slot->job->states->Await(request.chunk);
  ++session.requests_parked;
  TP_POINT("server.request_parked");
}

uint64_t Dispatcher::BeginHeld(SessionSlot* slot, const Request& held) {
  const Request request = held;
  Session& session = *slot->session;
  const uint64_t before = session.lane().bytes_started(), fetches = slot->job->open_traffic.fetches;
  if (StartOrWait(slot, request)) {
    if (!session.HasWaited(request)) TP_POINT("server.request_parked");
    session.LetWait(request);
    session.waits.Begin(request, clock_->NowNs());
    slot->job->states->Await(request.chunk);
    return 0;
  }

  if (session.HasWaited(request)) EndWait(slot, request, fetches);
  session.Unpark(request);
  return session.lane().bytes_started() - before + kRequestCost;
}

void Dispatcher::EndWait(SessionSlot* slot, const Request& request, uint64_t fetches) {
  const int64_t waited_ns = slot->session->waits.End(request, clock_->NowNs());
  StepTraffic* const traffic = &slot->job->open_traffic;
  if (traffic->fetches == fetches) return;  // it was no fetch, or got an error
  ++traffic->fetches_waited;
  traffic->fetch_wait_ns += waited_ns;
}

TP_HOT bool Dispatcher::RetryParked(SessionSlot* slot) {
  Session& session = *slot->session;
  const uint64_t changes = slot->job->Changes();
  if (session.seen_changes == changes) return false;
  session.seen_changes = changes;
  if (session.waiting().size() == 0) return false;
  ++consequences_;  // what begins now has waited, and may be a gradient

  session.waiting().Retry([this, slot](const Request& request) {
    if (slot->violation != nullptr) return false;
    if (slot->session->IsOrdered(request)) {
      slot->session->HoldAgain(request);
      return true;
    }

    const uint64_t fetches = slot->job->open_traffic.fetches;
    const bool waits = StartOrWait(slot, request);
    if (waits) slot->job->states->Await(request.chunk);
    if (!waits) EndWait(slot, request, fetches);
    return waits;
  });
  return true;
}

TP_HOT bool Dispatcher::EndCopies(SessionSlot* slot) {
  Copy copy;
  bool ended = false;
  while (slot->session->lane().TakeDone(&copy)) {
    RowOf(slot, copy.request).end(slot, copy);
    ended = true;
    if (TP_BUGGIFY("dispatcher.one_copy")) break;
  }
  return ended;
}

}  // namespace tidepool::memserver
