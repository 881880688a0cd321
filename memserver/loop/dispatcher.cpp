#include "memserver/loop/dispatcher.h"

#include <array>

#include "base/buggify.h"
#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/loop/resent_requests.h"
#include "memserver/traffic/frozen_requests.h"
#include "memserver/traffic/request_check.h"
#include "memserver/traffic/transfers.h"

namespace tidepool::memserver {
namespace {

using shm::Request;

shm::Completion Success(const Copy& copy) {
  shm::Completion completion{};
  completion.counter = copy.request.counter;
  completion.op = copy.request.op;
  completion.version = copy.request.version;
  completion.bytes = copy.bytes;
  return completion;
}

// In a broken run puts, gradients and ends of steps are always answered with kPeerLost, because
// their counts have no meaning.
const char* CheckPutRequest(Seat* seat, const Request& request) {
  if (seat->job->run_broken()) return nullptr;
  const char* why = CheckPut(*seat->job->states, seat->rank, request);
  if (why == nullptr)
    seat->job->states->intake(request.chunk, seat->rank).put_elements += request.element_count;
  return why;
}

Start StartPutRequest(Seat* seat, const Request& request) {
  if (seat->job->run_broken()) return Start::kPeerLost;
  return StartPut(seat->job->states.get(), seat->session.get(), request);
}

void EndPutRequest(Seat* seat, const Copy& copy) {
  Job* job = seat->job;
  const bool shard_in = EndPut(job->states.get(), seat->session.get(), copy);
  if (copy.to_staging) job->NoteProgress(JobProgress::kPutStagingFree);
  const bool narrows = job->states->chunk(copy.request.chunk).narrows();
  if (shard_in && narrows) job->narrows.Push({copy.request.chunk, seat->rank});
  if (shard_in && !narrows) CountLoadedShard(job, copy.request.chunk);
  Answer(seat, Success(copy));
}

const char* CheckFetchRequest(Seat* seat, const Request& request) {
  JobStates& states = *seat->job->states;
  const char* why = CheckFetch(states, request);
  if (why == nullptr && states.window().Covers(request.chunk))
    states.window().uses().Note(seat->rank, request.chunk, request.version);
  return why;
}

void CountFetch(Job* job, const Request& request) {
  ++job->open_traffic.fetches;
  job->open_traffic.bytes += request.element_count * BytesOf(job->spec().DTypeOf(request.chunk));
}

Start StartFetchRequest(Seat* seat, const Request& request) {
  JobStates& states = *seat->job->states;
  // A broken run makes no further step, and weights that a lost rank did not put stay incomplete.
  // No chunk is fetched before all are in, also one that is whole.
  const bool never_comes = request.version > states.sealed_version() || !states.weights_ready();
  if (seat->job->run_broken() && never_comes) return Start::kPeerLost;
  const Start start = StartFetch(&states, seat->session.get(), request);
  if (start == Start::kStarted) CountFetch(seat->job, request);
  return start;
}

void EndFetchRequest(Seat* seat, const Copy& copy) {
  EndFetch(seat->job->states.get(), seat->session.get(), copy);
  Answer(seat, Success(copy));
}

const char* CheckGradientRequest(Seat* seat, const Request& request) {
  Job* job = seat->job;
  if (job->run_broken()) return nullptr;
  if (job->step.HasEnded(seat->rank)) return "a gradient came after the rank had ended the step";
  const char* why = CheckGradient(*job->states, seat->rank, request);
  if (why == nullptr) job->intake.Accept(seat->rank, request);
  return why;
}

Start StartGradientRequest(Seat* seat, const Request& request) {
  if (seat->job->run_broken()) return Start::kPeerLost;
  return seat->job->intake.StartGradient(seat->session.get(), request);
}

void EndGradientRequest(Seat* seat, const Copy& copy) {
  const bool counts = seat->job->intake.EndGradient(seat->session.get(), copy);
  seat->session->WriteDone(copy.request.counter);
  Answer(seat, counts ? Success(copy) : Failure(copy.request, ErrorId::kPeerLost));
}

// --- frozen chunks ---

const char* CheckFrozenRequest(Seat* seat, const Request& request) {
  return CheckFrozen(*seat->job->states, seat->session->rcache_bytes(), request);
}

Start StartClaimRequest(Seat* seat, const Request& request) {
  return StartClaim(seat->job->states.get(), seat->session.get(), seat->job->id, request);
}

Start StartFrozenPutRequest(Seat* seat, const Request& request) {
  return StartFrozenPut(seat->job->states.get(), seat->session.get(), request);
}

void EndFrozenPutRequest(Seat* seat, const Copy& copy) {
  EndFrozenPut(seat->job->states.get(), seat->session.get(), copy);
  Answer(seat, Success(copy));
}

Start StartFrozenFetchRequest(Seat* seat, const Request& request) {
  const Start start = StartFrozenFetch(seat->job->states.get(), seat->session.get(), request);
  if (start == Start::kStarted) CountFetch(seat->job, request);
  return start;
}

void EndFrozenFetchRequest(Seat* seat, const Copy& copy) {
  EndFrozenFetch(seat->job->states.get(), seat->session.get(), copy);
  Answer(seat, Success(copy));
}

Start RefuseFrozenGradient(Seat*, const Request&) {
  return Start::kFrozen;
}

// One row for each operation that copies elements, by its number.
struct CopyOp {
  // Called once for a request; null when it is sound.
  const char* (*check)(Seat* seat, const Request& request);
  Start (*start)(Seat* seat, const Request& request);  // called again while it answers kWait
  void (*end)(Seat* seat, const Copy& copy);
};
constexpr std::array<CopyOp, 3> kCopyOps = {{
    {CheckPutRequest, StartPutRequest, EndPutRequest},
    {CheckFetchRequest, StartFetchRequest, EndFetchRequest},
    {CheckGradientRequest, StartGradientRequest, EndGradientRequest},
}};
static_assert(static_cast<uint32_t>(shm::Op::kPutWeights) == 1 &&
              static_cast<uint32_t>(shm::Op::kFetch) == 2 &&
              static_cast<uint32_t>(shm::Op::kSubmitGradient) == 3);

// The operations on frozen chunks. What is said of a step names no chunk.
constexpr std::array<CopyOp, 5> kFrozenOps = {{
    {CheckFrozenRequest, StartFrozenPutRequest, EndFrozenPutRequest},
    {CheckFrozenRequest, StartFrozenFetchRequest, EndFrozenFetchRequest},
    {CheckFrozenRequest, RefuseFrozenGradient, nullptr},
    {nullptr, nullptr, nullptr},
    {CheckFrozenRequest, StartClaimRequest, nullptr},
}};
static_assert(static_cast<uint32_t>(shm::Op::kClaimFrozen) == kFrozenOps.size());

const CopyOp& RowOf(const Seat* seat, const Request& request) {
  return seat->job->spec().IsFrozen(request.chunk) ? kFrozenOps[request.op - 1]
                                                   : kCopyOps[request.op - 1];
}

// Answers or starts the request; true when it must wait (still).
bool StartOrWait(Seat* seat, const Request& request) {
  switch (RowOf(seat, request).start(seat, request)) {
    case Start::kStarted: return false;
    case Start::kWait: return true;
    case Start::kTooLate:
      seat->violation = "the version asked for is already overwritten";
      return false;
    case Start::kPeerLost: Answer(seat, Failure(request, ErrorId::kPeerLost)); return false;
    case Start::kDone: Answer(seat, Success({request, 0, 0, false})); return false;

    case Start::kAlreadyPresent:
      Answer(seat, Success({request, seat->job->states->frozen(request.chunk).chunk->name.bytes, 0,
                            false}));
      return false;
    case Start::kFrozen: Answer(seat, Failure(request, ErrorId::kChunkFrozen)); return false;
    case Start::kUploadLost: Answer(seat, Failure(request, ErrorId::kUploadLost)); return false;
    case Start::kRejected: Answer(seat, Failure(request, ErrorId::kContentMismatch)); return false;
    case Start::kOutOfOrder:
      seat->violation = "the bytes of a frozen chunk are not put in order from its start";
      return false;
  }

  TP_CHECK(false, "an outcome of Start");
  return false;
}

// Ends all ranks of the job: nobody can know which of them is wrong.
void EndAll(Job* job, const char* why) {
  for (Seat* seat : job->seats) {
    if (seat != nullptr) seat->violation = why;
  }
}

// Whether the rank names the numbers of groups that those name who have ended the step.
bool AgreesWithEnded(const Job& job, Rank rank) {
  for (Rank other = 0; other < job.spec().world; ++other) {
    if (job.step.HasEnded(other) && !job.numbers.Agree(rank, other)) return false;
  }
  return true;
}

// Numbers of groups, and parameters that no backward has reached.
void TakeNumbers(Seat* seat, const Request& request) {
  Job* job = seat->job;
  // Their fate is that of the end that follows them.
  if (shm::IsResent(request.flags) && AnswerResentEnd(seat, shm::AsEndStep(request))) return;
  if (job->run_broken()) return Answer(seat, Failure(request, ErrorId::kPeerLost));
  seat->violation = CheckOpenStep(*job->states, request.version, request.flags);
  if (seat->violation != nullptr) return;
  if (job->step.HasEnded(seat->rank)) {
    seat->violation = "numbers of a step came after the rank had ended it";
    return;
  }

  if (!job->states->records().slots().Exist()) {
    const bool has_numbers = request.op == static_cast<uint32_t>(shm::Op::kGroupNumbers);
    // Such a job goes on as it began: what no backward reaches has a gradient of zero.
    if (has_numbers) seat->violation = "the job began with a release that keeps no such numbers";
    if (!has_numbers) Answer(seat, Success({request, 0, 0, false}));
    return;
  }
  seat->violation = job->numbers.Take(seat->rank, request);
  TP_POINT("server.step_numbers_taken");
}

void EndStep(Seat* seat, const shm::EndStepRequest& request) {
  Job* job = seat->job;
  if (shm::IsResent(request.flags) && AnswerResentEnd(seat, request)) return;
  if (job->run_broken()) {
    Answer(seat, Failure(shm::AsRequest(request), ErrorId::kPeerLost));
    return;
  }
  if (!HasUsableNumbers(request) && !TP_PLANTED("step.numbers_unchecked")) {
    Answer(seat, Failure(shm::AsRequest(request), ErrorId::kConfigBadValue));
    return;
  }

  seat->violation = CheckEndStep(*job->states, request);
  if (seat->violation != nullptr) return;
  if (job->step.HasEnded(seat->rank)) {
    seat->violation = "the rank has ended this step already";
  } else if (!job->intake.RankComplete(seat->rank)) {
    seat->violation = "the step ended before all gradients of the rank were submitted";
  } else if (!AgreesWithEnded(*job, seat->rank)) {
    EndAll(job, "ranks end a step with different numbers of a parameter group");
  } else if (const char* differs = job->step.End(seat->rank, request)) {
    EndAll(job, differs);
  }

  TP_POINT("server.step_ended_by_rank");
}

}  // namespace

bool Dispatcher::TakeRequests(Seat* seat, uint32_t requests_max) {
  Request request;
  uint32_t taken = 0;
  if (TP_BUGGIFY("dispatcher.one_request")) requests_max = 1;

  while (taken < requests_max && seat->violation == nullptr) {
    const shm::PopResult popped = seat->session->Take(&request, &seat->violation);
    if (popped != shm::PopResult::kItem) break;
    ++taken;
    TP_POINT("server.request_taken");
    Handle(seat, request);
  }
  return taken > 0 || seat->violation != nullptr;
}

void Dispatcher::Handle(Seat* seat, const Request& request) {
  const uint32_t protocol = seat->session->port().protocol();
  const bool numbers_known = protocol >= shm::kAbiNumbers;
  if (request.op < shm::kOpMin || request.op > shm::kOpMax ||
      (shm::IsStepNumbers(request) && !numbers_known)) {
    seat->violation = "the operation is unknown";
    return;
  }
  seat->violation = CheckFlags(request, protocol);
  if (seat->violation != nullptr) return;

  if (request.op == static_cast<uint32_t>(shm::Op::kEndStep)) {
    EndStep(seat, shm::AsEndStep(request));
    return;
  }
  if (shm::IsStepNumbers(request)) return TakeNumbers(seat, request);
  if (shm::UsesAhead(request) != 0 && !seat->session->is_brought()) {
    seat->violation = "a fetch into memory that the server made says how soon it is used";
    return;
  }

  if (seat->job->spec().IsFrozen(request.chunk)) return StartChecked(seat, request);
  if (request.op == static_cast<uint32_t>(shm::Op::kClaimFrozen)) {
    seat->violation = "a chunk is claimed that is not frozen";
    return;
  }
  const char* why =
      CheckRange(*seat->job->states, seat->rank, seat->session->rcache_bytes(), request);
  if (why == nullptr && shm::IsResent(request.flags) && IsApplied(seat, request)) {
    Answer(seat, Success({request, 0, 0, false}));
    TP_POINT("server.resubmit_answered");
    return;
  }

  if (why == nullptr && shm::IsResent(request.flags) && IsPassedOver(*seat->job, request)) {
    Answer(seat, Failure(request, ErrorId::kVersionGone));
    return;
  }
  if (why == nullptr) return StartChecked(seat, request);
  seat->violation = why;
}

// Checks the operation's own rules, then starts the request, or parks it.
void Dispatcher::StartChecked(Seat* seat, const Request& request) {
  seat->violation = RowOf(seat, request).check(seat, request);
  if (seat->violation != nullptr) return;
  Session& session = *seat->session;
  if (session.IsOrdered(request)) {
    const DType dtype = seat->job->spec().DTypeOf(request.chunk);
    return session.Hold(request, request.element_count * BytesOf(dtype));
  }

  if (!session.waiting().IsBehind(request) && !StartOrWait(seat, request)) return;
  session.waiting().Add(request);
  seat->job->states->Await(request.chunk);
  ++session.requests_parked;
  TP_POINT("server.request_parked");
}

uint64_t Dispatcher::BeginHeld(Seat* seat, const Request& held) {
  const Request request = held;
  Session& session = *seat->session;
  const uint64_t before = session.lane().bytes_started(), fetches = seat->job->open_traffic.fetches;
  if (StartOrWait(seat, request)) {
    if (!session.HasWaited(request)) TP_POINT("server.request_parked");
    session.LetWait(request);
    seat->job->states->Await(request.chunk);
    return 0;
  }

  if (session.HasWaited(request))
    seat->job->open_traffic.fetches_waited += seat->job->open_traffic.fetches - fetches;
  session.Unpark(request);
  return session.lane().bytes_started() - before + kRequestCost;
}

bool Dispatcher::RetryParked(Seat* seat) {
  Session& session = *seat->session;
  const uint64_t changes = seat->job->Changes();
  if (session.seen_changes == changes) return false;
  session.seen_changes = changes;
  if (session.waiting().size() == 0) return false;

  session.waiting().Retry([seat](const Request& request) {
    if (seat->violation != nullptr) return false;
    if (seat->session->IsOrdered(request)) {
      seat->session->HoldAgain(request);
      return true;
    }

    const uint64_t fetches = seat->job->open_traffic.fetches;
    const bool waits = StartOrWait(seat, request);
    seat->job->open_traffic.fetches_waited += seat->job->open_traffic.fetches - fetches;
    if (waits) seat->job->states->Await(request.chunk);
    return waits;
  });
  return true;
}

bool Dispatcher::EndCopies(Seat* seat) {
  Copy copy;
  bool ended = false;
  while (seat->session->lane().TakeDone(&copy)) {
    RowOf(seat, copy.request).end(seat, copy);
    ended = true;
    if (TP_BUGGIFY("dispatcher.one_copy")) break;
  }
  return ended;
}

}  // namespace tidepool::memserver
