#include "client/mem_client.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/clock.h"
#include "base/point.h"
#include "base/units.h"
#include "shm/frames.h"
#include "shm/messages.h"
#include "shm/socket_path.h"

namespace tidepool::client {

namespace {

constexpr int64_t kSliceNs = 20 * kNsPerMs;               // between two looks at the control socket while waiting
constexpr int64_t kControlTimeoutNs = 10 * kNsPerSecond;  // until the server takes a control frame or confirms a goodbye
constexpr int64_t kLastWordsNs = 200 * kNsPerMs;          // for the text that explains an end mark in the ring

const char* NameOf(shm::Op op) {
  constexpr std::array<const char*, shm::kOpMax + 1> kNames{"?", "put weights of", "fetch", "submit gradient of", "end step"};
  return kNames[static_cast<uint32_t>(op)];
}

shm::Request RequestOf(shm::Op op, const Range& range) {
  shm::Request request{};
  request.op = static_cast<uint32_t>(op);
  request.chunk = range.chunk;
  request.rcache_offset = range.rcache_offset;
  request.element_begin = range.element_begin;
  request.element_count = range.element_count;
  return request;
}

}  // namespace

Result<std::unique_ptr<MemClient>> MemClient::Connect(const ClientOptions& options, const shm::JobSpec& spec, Rank rank) {
  const std::string socket_dir = options.socket_dir.empty() ? shm::DefaultSocketDir() : options.socket_dir;
  TP_ASSIGN_OR_RETURN(ControlChannel channel, ControlChannel::Open(socket_dir, options.connect_timeout_ns));
  TP_POINT("client.connected");
  TP_ASSIGN_OR_RETURN(AttachedSession session, AttachSession(&channel, spec, rank, options.attach_timeout_ns));
  return std::unique_ptr<MemClient>(new MemClient(options, std::move(channel), std::move(session)));
}

MemClient::MemClient(const ClientOptions& options, ControlChannel channel, AttachedSession session)
    : options_(options), channel_(std::move(channel)), session_(std::move(session)) {
  tickets_.reserve(kTicketsMax);
}

Result<Ticket> MemClient::StartPutWeights(const Range& range) {
  auto ticket = Start(RequestOf(shm::Op::kPutWeights, range));
  TP_POINT("client.put_sent");
  return ticket;
}

Result<Ticket> MemClient::StartFetch(const Range& range, Version version) {
  shm::Request request = RequestOf(shm::Op::kFetch, range);
  request.version = version;
  auto ticket = Start(request);
  TP_POINT("client.fetch_sent");
  return ticket;
}

Result<Ticket> MemClient::StartSubmitGradient(const Range& range, Version version, uint32_t micro_batch) {
  shm::Request request = RequestOf(shm::Op::kSubmitGradient, range);
  request.version = version;
  request.micro_batch = micro_batch;
  auto ticket = Start(request);
  TP_POINT("client.gradient_sent");
  return ticket;
}

Result<Ticket> MemClient::StartEndStep(const StepEnd& end) {
  shm::EndStepRequest request{};
  request.op = static_cast<uint32_t>(shm::Op::kEndStep);
  request.learning_rate = end.learning_rate;
  request.version = end.version;
  request.data_cursor = end.data_cursor;
  request.loss_scale = end.loss_scale;
  request.scaler_steps = end.scaler_steps;
  request.random_state = end.random_state;
  auto ticket = Start(shm::AsRequest(request));
  TP_POINT("client.end_step_sent");
  return ticket;
}

Result<Ticket> MemClient::Start(shm::Request request) {
  if (!ended_.ok()) return ended_;
  TP_CHECK(tickets_.size() < kTicketsMax, "more tickets in flight than kTicketsMax; take outcomes with Wait first");
  request.counter = last_counter_ + 1;
  TP_RETURN_IF_ERROR(PushWhenRoom(request));
  last_counter_ = request.counter;
  PendingRequest pending;
  pending.op = static_cast<shm::Op>(request.op);
  pending.chunk = request.chunk;
  pending.version = request.version;
  if (pending.op == shm::Op::kEndStep) pending.chunk = 0;
  tickets_.emplace(last_counter_, std::move(pending));
  return last_counter_;
}

Status MemClient::PushWhenRoom(const shm::Request& request) {
  const SteadyClock clock;
  const int64_t end = clock.NowNs() + options_.wait_timeout_ns;
  // With at most kTicketsMax requests in flight the ring is never full for an honest server; a stopped one is waited for.
  while (!session_.port->Push(request)) {
    TP_RETURN_IF_ERROR(CheckSession());
    if (clock.NowNs() > end) return Status(ErrorId::kWaitTimeout, "memserver does not read its request ring");
    session_.port->WaitForCompletion(kSliceNs, options_.spin_ns);
  }
  return Status();
}

void MemClient::TakeCompletions() {
  shm::Completion completion{};
  while (session_.port->Pop(&completion)) {
    const auto found = tickets_.find(completion.counter);
    if (found == tickets_.end() || found->second.outcome) {
      if (ended_.ok()) {
        ended_ = Status(ErrorId::kProtocolViolation,
                        "memserver answered request " + std::to_string(completion.counter) + ", which is not in flight");
      }
      return;
    }
    found->second.outcome.emplace(OutcomeOf(completion, found->second));
  }
}

Result<Outcome> MemClient::OutcomeOf(const shm::Completion& completion, const PendingRequest& pending) const {
  if (completion.error != 0) {
    const ErrorId id = completion.error <= UINT16_MAX ? static_cast<ErrorId>(completion.error) : ErrorId::kInternal;
    const bool of_chunk = pending.op != shm::Op::kEndStep;
    return Status(id, std::string("memserver answered '") + NameOf(pending.op) +
                          (of_chunk ? " chunk " + std::to_string(pending.chunk) : std::string()) + "' with " + ErrorEntryOf(id).name)
        .Where("job " + std::to_string(session_.attachment.job) + ", version " + std::to_string(pending.version));
  }
  return Outcome{completion.version, completion.bytes, completion.grad_norm, completion.skipped != 0};
}

bool MemClient::Test(Ticket ticket) {
  TakeCompletions();
  const auto found = tickets_.find(ticket);
  TP_CHECK(found != tickets_.end(), "a ticket was used after its outcome had been taken");
  if (found->second.outcome.has_value() || !ended_.ok() || session_.port->Ended()) return true;
  // A caller may test often: the system call that looks at the socket is made once a slice.
  const int64_t now = SteadyClock().NowNs();
  if (now - socket_looked_ns_ < kSliceNs) return false;
  socket_looked_ns_ = now;
  return !CheckSession().ok();
}

Result<Outcome> MemClient::Wait(Ticket ticket) {
  const auto found = tickets_.find(ticket);
  TP_CHECK(found != tickets_.end(), "a ticket was used after its outcome had been taken");
  const SteadyClock clock;
  const int64_t end = clock.NowNs() + options_.wait_timeout_ns;
  int64_t spin_ns = options_.spin_ns;  // only in the first slice: later ones are long waits
  for (;;) {
    TakeCompletions();
    if (found->second.outcome) {
      Result<Outcome> outcome = std::move(*found->second.outcome);
      tickets_.erase(found);
      TP_POINT("client.outcome_taken");
      return outcome;
    }
    if (!ended_.ok()) return ended_;
    const int64_t left = end - clock.NowNs();
    if (left <= 0) break;
    session_.port->WaitForCompletion(std::min(left, kSliceNs), spin_ns);
    // The socket is looked at only when the slice brought nothing: a system call per request would double its cost.
    TakeCompletions();
    if (!found->second.outcome) TP_RETURN_IF_ERROR(CheckSession());
    spin_ns = 0;
  }
  return Status(ErrorId::kWaitTimeout, std::string("no answer to '") + NameOf(found->second.op) + " chunk " +
                                           std::to_string(found->second.chunk) + "' within " +
                                           FormatDuration(static_cast<double>(options_.wait_timeout_ns) / 1e9));
}

Status MemClient::CheckSession() {
  if (!ended_.ok()) return ended_;
  const auto ring_end = session_.port->Ended();
  // An end mark in the ring has no text; its frame follows at once unless the server died in between.
  const SteadyClock clock;
  const int64_t text_end = clock.NowNs() + kLastWordsNs;
  for (;;) {
    auto received = channel_.Poll();
    if (!received.ok() && ring_end) return EndSession(Status(*ring_end, "memserver ended this session"));
    if (!received.ok()) return EndSession(received.status());
    if (received->has_value()) {
      TP_RETURN_IF_ERROR(HandleFrame((*received)->frame));
      continue;
    }
    if (!ring_end) return Status();
    if (clock.NowNs() > text_end) return EndSession(Status(*ring_end, "memserver ended this session"));
    SteadyClock().SleepNs(kNsPerMs);
  }
}

Status MemClient::HandleFrame(const shm::Frame& frame) {
  if (const auto* ended = std::get_if<shm::EndedFrame>(&frame)) return EndSession(ended->why);
  if (const auto* lost = std::get_if<shm::PeerLostFrame>(&frame)) {
    return EndSession(Status(ErrorId::kPeerLost, "rank " + std::to_string(lost->rank) + " of this job has died or lost its connection"));
  }
  if (const auto* done = std::get_if<shm::SaveDoneFrame>(&frame)) {
    save_result_ = done->result;
    return Status();
  }
  return EndSession(Status(ErrorId::kHandshakeBad, std::string("memserver sent an unexpected ") + shm::NameOf(frame) + " frame"));
}

Status MemClient::EndSession(Status why) {
  if (ended_.ok()) ended_ = why.ok() ? Status(ErrorId::kSessionEnded, "memserver ended this session") : std::move(why);
  return ended_;
}

Status MemClient::DeclareSchedule(std::span<const ChunkId> order) {
  TP_RETURN_IF_ERROR(CheckSession());
  constexpr size_t kUsesPerPart = shm::kPartBytesMax / sizeof(ChunkId) - 2;
  for (size_t at = 0; at < order.size(); at += kUsesPerPart) {
    const auto part = order.subspan(at, std::min(kUsesPerPart, order.size() - at));
    const Status sent =
        channel_.Send(shm::SchedulePartFrame{static_cast<uint32_t>(order.size()), {part.begin(), part.end()}}, kControlTimeoutNs);
    if (!sent.ok()) return EndSession(sent);
  }
  TP_POINT("client.schedule_sent");
  return Status();
}

Status MemClient::SaveWeights(int dir_fd, const std::string& name, Version version) {
  TP_RETURN_IF_ERROR(CheckSession());
  if (!shm::IsPlainFileName(name)) return Status(ErrorId::kSaveFailed, "'" + name + "' is not a plain file name");
  save_result_.reset();
  const std::array<int, 1> fds{dir_fd};
  const Status sent = channel_.Send(shm::SaveFrame{version, name}, kControlTimeoutNs, fds);
  if (!sent.ok()) return EndSession(sent);
  TP_POINT("client.save_sent");
  const SteadyClock clock;
  const int64_t end = clock.NowNs() + options_.save_timeout_ns;
  while (!save_result_) {
    TP_RETURN_IF_ERROR(CheckSession());
    if (save_result_) break;
    if (clock.NowNs() > end) return Status(ErrorId::kWaitTimeout, "memserver has not finished saving '" + name + "'");
    session_.port->WaitForCompletion(kNsPerMs, 0);
    TakeCompletions();
  }
  return *save_result_;
}

Status MemClient::Detach() {
  TP_RETURN_IF_ERROR(CheckSession());
  const Status sent = channel_.Send(shm::GoodbyeFrame{}, kControlTimeoutNs);
  if (!sent.ok()) return EndSession(sent);
  TP_POINT("client.goodbye_sent");
  // The server closes the socket when it has taken the session down; then its memory is free for the next job.
  Result<ReceivedFrame> last = channel_.Await(kControlTimeoutNs);
  while (last.ok()) last = channel_.Await(kControlTimeoutNs);
  const bool closed = last.status().id() == ErrorId::kServerGone;
  ended_ = Status(ErrorId::kSessionEnded, "this rank has detached from its job");
  return closed ? Status() : last.status();
}

}  // namespace tidepool::client
