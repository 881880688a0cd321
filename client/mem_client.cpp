#include "client/mem_client.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/random.h"
#include "base/units.h"
#include "client/answers.h"
#include "shm/frames.h"
#include "shm/messages.h"
#include "shm/socket_path.h"

namespace tidepool::client {

namespace {

// Time to wait for the text that explains an end mark in the ring.
constexpr int64_t kLastWordsNs = 200 * kNsPerMs;

shm::Request RequestOf(shm::Op op, const Range& range) {
  shm::Request request{};
  request.op = static_cast<uint32_t>(op);
  request.chunk = range.chunk;
  request.rcache_offset = range.rcache_offset;
  request.element_begin = range.element_begin;
  request.element_count = range.element_count;
  return request;
}

uint64_t RandomNonce(const Clock& clock) {
  uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof nonce, 0) == sizeof nonce && nonce != 0) return nonce;
  // Without random numbers of the system: two incarnations of a rank differ in pid and time.
  const auto seed = static_cast<uint64_t>(clock.NowNs()) ^ (static_cast<uint64_t>(getpid()) << 40);
  return SplitMix64(seed).Next() | 1;
}

}  // namespace

Result<std::unique_ptr<MemClient>> MemClient::Connect(const ClientOptions& options,
                                                      const shm::JobSpec& spec, Rank rank) {
  if (options.clock == nullptr) {
    return Status(ErrorId::kUsageError, "ClientOptions has no clock")
        .Why("all limits of a client are kept by the clock that it is given")
        .Fix("set ClientOptions::clock, to a tidepool::SteadyClock that outlives the client");
  }

  const std::string socket_dir =
      options.socket_dir.empty() ? shm::DefaultClientDir() : options.socket_dir;
  const RankName who{rank, RandomNonce(*options.clock), options.run_note};
  TP_ASSIGN_OR_RETURN(Link link, Attach(options, socket_dir, spec, who));
  return std::unique_ptr<MemClient>(new MemClient(options, socket_dir, who, std::move(link), spec));
}

MemClient::MemClient(const ClientOptions& options, std::string socket_dir, const RankName& who,
                     Link link, const shm::JobSpec& spec)
    : options_(options),
      clock_(options.clock),
      socket_dir_(std::move(socket_dir)),
      who_(who),
      sums_gradients_(spec.sums_gradients != 0),
      channel_(std::move(link.channel)),
      session_(std::move(link.session)),
      attempt_(session_.attempt),
      flags_(session_.flags != nullptr ? session_.flags->data() : nullptr) {
  // Trained chunks first, then frozen ones.
  for (size_t id = 0; id < spec.chunks.size() + spec.frozen.size(); ++id)
    element_bytes_.push_back(static_cast<uint8_t>(BytesOf(spec.DTypeOf(static_cast<ChunkId>(id)))));
}

Status MemClient::Usable() const {
  if (!fork_guard_.Inherited()) return ended_;
  return Status(ErrorId::kProtocolViolation, "a forked child used the session of its parent")
      .Where("rank " + std::to_string(who_.rank) + " of job " +
             std::to_string(session_.attachment.job))
      .Fix(
          "use the session in the process that attached, or let the child attach as a rank of its "
          "own");
}

Result<Ticket> MemClient::StartPutWeights(const Range& range) {
  shm::Request request = RequestOf(shm::Op::kPutWeights, range);
  request.micro_batch = range.plane;
  auto ticket = Start(request);
  TP_POINT("client.put_sent");
  return ticket;
}

Result<Ticket> MemClient::StartClaimFrozen(ChunkId chunk) {
  return Start(RequestOf(shm::Op::kClaimFrozen, {.chunk = chunk}));
}

Result<Ticket> MemClient::StartFetch(const Range& range, const Wanted& wanted) {
  shm::Request request = RequestOf(shm::Op::kFetch, range);
  request.version = wanted.version;
  // If the server made the rCache, it has no copy order for GPUs, and may be of a version that does
  // not know this number.
  if (!flags_.is_null()) request.micro_batch = wanted.uses_ahead;
  auto ticket = Start(request);
  TP_POINT("client.fetch_sent");
  return ticket;
}

Result<Ticket> MemClient::StartSubmitGradient(const Range& range, Version version,
                                              uint32_t micro_batch) {
  if (micro_batch == shm::kSummed && session_.port->protocol() < shm::kAbiSteps)
    return Status(ErrorId::kAbiMismatch, "memserver is of a release that takes no logged steps")
        .Fix("start the memserver of this release");
  shm::Request request = RequestOf(shm::Op::kSubmitGradient, range);
  request.version = version;
  request.micro_batch = micro_batch;
  auto ticket = Start(request);
  TP_POINT("client.gradient_sent");
  return ticket;
}

Result<Ticket> MemClient::StartSubmitZeros(const Range& range, Version version,
                                           uint32_t micro_batch) {
  shm::Request request = RequestOf(shm::Op::kSubmitGradient, range);
  request.version = version;
  request.rcache_offset = 0;
  request.micro_batch = micro_batch;
  request.flags = shm::kZeros;
  auto ticket = Start(request);
  TP_POINT("client.gradient_sent");
  return ticket;
}

TicketFlags MemClient::FlagsOf(Ticket ticket) const {
  if (flags_.is_null()) return {};
  return {flags_.ready(ticket), flags_.done(ticket), ticket};
}

Result<Ticket> MemClient::Start(shm::Request request) {
  TP_RETURN_IF_ERROR(Usable());
  if (parked_.any()) TP_RETURN_IF_ERROR(AwaitParked());
  TP_CHECK(requests_.size() < kTicketsMax,
           "more tickets in flight than kTicketsMax; take outcomes with Wait first");
  attempt_.Name(&request);
  const Ticket ticket = requests_.Add(&request);
  const Status sent = PushWhenRoom(request);
  if (sent.ok()) return ticket;
  requests_.TakeBack(ticket);
  return sent;
}

// Adapts the request to the session's version: earlier ones have no attempts.
bool MemClient::Push(shm::Request request, shm::More more) {
  if (session_.port->protocol() < shm::kAbiAttempt && !TP_PLANTED("client.attempt_to_older_server"))
    request.flags &= shm::kResubmitted;
  return session_.port->Push(request, more);
}

Status MemClient::PushWhenRoom(const shm::Request& request) {
  const int64_t end = clock_->NowNs() + options_.wait_timeout_ns - parked_ns_;
  const uint64_t comebacks = comebacks_;
  // With at most kTicketsMax requests in flight the ring is never full unless the server has
  // stalled; then this waits.
  while (!Push(request, shm::More::kNo)) {
    TP_RETURN_IF_ERROR(CheckSession());
    if (comebacks_ != comebacks) return Status();  // resent with all the others
    if (clock_->NowNs() > end + parked_ns_)
      return Status(ErrorId::kWaitTimeout, "memserver does not read its request ring");
    session_.port->WaitForCompletion(clock_, kSliceNs, options_.spin_ns);
  }
  return Status();
}

void MemClient::TakeCompletions() {
  shm::Completion completion{};
  while (session_.port->Pop(&completion)) {
    RequestLog::Entry* entry = requests_.FindUnanswered(completion.counter);
    if (entry == nullptr) {
      (void)EndSession(Status(ErrorId::kProtocolViolation, "memserver answered request " +
                                                               std::to_string(completion.counter) +
                                                               ", which is not in flight"));
      return;
    }
    entry->outcome.emplace(OutcomeOf(completion, entry->request, session_.attachment.job));
    attempt_.Follow(entry->request, entry->outcome->status().id(), session_.port->protocol());

    if (!flags_.is_null() && (entry->request.flags & shm::kResubmitted) != 0) {
      const Ticket ticket = requests_.TicketOf(completion.counter);
      flags_.done(ticket)->store(ticket, std::memory_order_release);
    }
  }
  SendParked();
}

bool MemClient::Test(Ticket ticket) {
  if (fork_guard_.Inherited()) return true;
  TakeCompletions();
  const RequestLog::Entry* entry = requests_.Find(ticket);
  TP_CHECK(entry != nullptr, "a ticket was used after its outcome had been taken");
  if (entry->outcome.has_value() || !ended_.ok() || session_.port->Ended()) return true;
  // A caller may test often, so the socket's system call is made once per slice.
  const int64_t now = clock_->NowNs();
  if (now - socket_looked_ns_ < kSliceNs) return false;
  socket_looked_ns_ = now;
  return !LookAtSession().ok();
}

Result<Outcome> MemClient::Wait(Ticket ticket) {
  if (fork_guard_.Inherited()) return Usable();
  RequestLog::Entry* entry = requests_.Find(ticket);
  TP_CHECK(entry != nullptr, "a ticket was used after its outcome had been taken");
  const int64_t end = clock_->NowNs() + options_.wait_timeout_ns - parked_ns_;
  int64_t spin_ns = options_.spin_ns;  // only in the first slice: later slices are long waits

  for (;;) {
    TakeCompletions();
    if (entry->outcome) {
      Result<Outcome> outcome = std::move(*entry->outcome);
      requests_.Remove(ticket);
      if (ticket == numbered_end_) {
        for (const Ticket number : std::exchange(numbers_, {})) requests_.Remove(number);
      }
      TP_POINT("client.outcome_taken");
      return outcome;
    }

    if (!ended_.ok()) return ended_;
    const int64_t left = end + parked_ns_ - clock_->NowNs();
    if (left <= 0) break;
    session_.port->WaitForCompletion(clock_, std::min(left, slice_ns()), spin_ns);

    // The socket is checked only if the slice brought nothing: a system call per request would
    // double its cost.
    TakeCompletions();
    if (!entry->outcome) TP_RETURN_IF_ERROR(CheckSession());
    spin_ns = 0;
  }

  return Status(ErrorId::kWaitTimeout, "no answer to '" + Described(entry->request) + "' within " +
                                           FormatNs(options_.wait_timeout_ns))
      .Fix(
          "memserver's log says what the job waits for, such as a drive that takes no states while "
          "the pool has no room for them; "
          "it keeps the job for its lease: when that is mended, go on with --resume auto");
}

Status MemClient::LookAtSession() {
  if (!ended_.ok()) return ended_;
  const auto ring_end = session_.port->Ended();
  // An end mark in the ring has no text; its frame follows at once unless the server died in
  // between.
  const int64_t text_end = clock_->NowNs() + kLastWordsNs;
  for (;;) {
    auto received = channel_.Poll();
    if (!received.ok() && ring_end)
      return EndSession(Status(*ring_end, "memserver ended this session"));
    if (received.status().id() == ErrorId::kServerGone && options_.server_timeout_ns > 0)
      return received.status();
    if (!received.ok()) return EndSession(received.status());

    if (received->has_value()) {
      TP_RETURN_IF_ERROR(HandleFrame(std::move(**received)));
      continue;
    }
    if (!ring_end) return Status();
    if (clock_->NowNs() > text_end)
      return EndSession(Status(*ring_end, "memserver ended this session"));
    clock_->SleepNs(kNsPerMs);
  }
}

Status MemClient::CheckSession() {
  const Status seen = LookAtSession();
  return seen.ok() || !ended_.ok() ? seen : ComeBack();
}

Status MemClient::Check() {
  TP_RETURN_IF_ERROR(Usable());
  TakeCompletions();
  return CheckSession();
}

Status MemClient::HandleFrame(ReceivedFrame received) {
  const shm::Frame& frame = received.frame;
  if (const auto* ended = std::get_if<shm::EndedFrame>(&frame)) return EndSession(ended->why);
  if (const auto* lost = std::get_if<shm::PeerLostFrame>(&frame)) {
    return EndSession(Status(
        ErrorId::kPeerLost,
        "rank " + std::to_string(lost->rank) + " of this job has died or lost its connection"));
  }

  if (const auto* done = std::get_if<shm::SaveDoneFrame>(&frame)) {
    if (save_) save_->result = done->result;
    if (!save_ && stream_) stream_->ended = done->result;
    return Status();
  }
  if (std::holds_alternative<shm::StatesStreamFrame>(frame) && stream_) {
    stream_->memory = std::move(received.fds[0]);
    return Status();
  }

  if (std::holds_alternative<shm::StepsStreamFrame>(frame) && steps_) {
    steps_->memory = std::move(received.fds[0]);
    return Status();
  }
  if (const auto* done = std::get_if<shm::StepsEndedFrame>(&frame); done != nullptr && steps_) {
    steps_->ended = done->result;
    return Status();
  }
  return EndSession(Status(ErrorId::kHandshakeBad, std::string("memserver sent an unexpected ") +
                                                       shm::NameOf(frame) + " frame"));
}

Status MemClient::EndSession(Status why) {
  if (!ended_.ok()) return ended_;
  ended_ =
      why.ok() ? Status(ErrorId::kSessionEnded, "memserver ended this session") : std::move(why);
  // Releases streams of this rank that would wait for a lost server.
  if (!flags_.is_null()) flags_.PoisonDone();
  return ended_;
}

Status MemClient::AfterSend(const Status& sent) {
  if (sent.ok()) return sent;
  return sent.id() == ErrorId::kServerGone ? CheckSession() : EndSession(sent);
}

Status MemClient::SendSchedule() {
  constexpr size_t kUsesPerPart = shm::kPartBytesMax / sizeof(ChunkId) - 2;
  const std::span<const ChunkId> order(schedule_);
  for (size_t at = 0; at < order.size(); at += kUsesPerPart) {
    const auto part = order.subspan(at, std::min(kUsesPerPart, order.size() - at));
    TP_RETURN_IF_ERROR(channel_.Send(
        shm::SchedulePartFrame{static_cast<uint32_t>(order.size()), {part.begin(), part.end()}},
        kControlTimeoutNs));
  }
  return Status();
}

// --- schedules and detaching ---

Status MemClient::DeclareSchedule(std::span<const ChunkId> order) {
  TP_RETURN_IF_ERROR(Usable());
  TP_RETURN_IF_ERROR(CheckSession());
  schedule_.assign(order.begin(), order.end());
  TP_RETURN_IF_ERROR(AfterSend(SendSchedule()));
  TP_POINT("client.schedule_sent");
  return Status();
}

Status MemClient::Detach() {
  TP_RETURN_IF_ERROR(Usable());
  TP_RETURN_IF_ERROR(CheckSession());
  bool sent = false;
  Status left = SayGoodbye(&sent);
  while (left.id() == ErrorId::kServerGone && options_.server_timeout_ns > 0) {
    left = ComeBack();
    // The ended server had removed the job, or this rank of it.
    const bool was_done =
        sent && (left.id() == ErrorId::kStatesLost || left.id() == ErrorId::kPeerLost);
    if (!left.ok() && !was_done) return left;
    left = was_done ? Status() : SayGoodbye(&sent);
  }
  (void)EndSession(Status(ErrorId::kSessionEnded, "this rank has detached from its job"));
  // A caller that does not wait for lost servers takes the server's end as the answer.
  return left.id() == ErrorId::kServerGone ? Status() : left;
}

Status MemClient::SayGoodbye(bool* sent) {
  const Status status = channel_.Send(shm::GoodbyeFrame{}, kControlTimeoutNs);
  if (status.ok()) *sent = true;
  TP_POINT("client.goodbye_sent");
  for (;;) {
    // The server answers after taking the session down; its memory is then free for the next job.
    const auto last = channel_.Await(kControlTimeoutNs);
    if (!last.ok()) return status.ok() ? last.status() : status;
    if (std::holds_alternative<shm::EndedFrame>(last.value().frame)) return Status();
  }
}

}  // namespace tidepool::client
