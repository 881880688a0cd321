// How MemClient continues after its server has ended: it waits for the server that takes the job
// over, and sends unanswered requests again.
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "client/mem_client.h"
#include "shm/frames.h"
#include "shm/messages.h"

namespace tidepool::client {

Status MemClient::ComeBack() {
  TP_POINT("client.server_lost");
  Patience patience(clock_, options_.server_timeout_ns);
  Tell(options_,
       "memserver has ended; waiting for it for up to " + FormatNs(options_.server_timeout_ns));
  if (!TP_PLANTED("client.no_room_made")) MakeRoom(options_, /*server_comes=*/true);

  size_t sent_again = 0;
  for (;;) {
    // Takes the answers that the former server still gave.
    if (!TP_PLANTED("client.old_ring_not_drained")) TakeCompletions();
    if (!ended_.ok()) return ended_;
    const Status status = Rejoin(patience.LeftNs(), &sent_again);
    if (status.ok()) break;
    if (!MayComeBack(status.id())) return EndSession(status);
    if (!patience.Pause()) return EndSession(WaitedInVain(patience, status));
  }

  MakeRoom(options_, /*server_comes=*/false);
  parked_ns_ += patience.WaitedNs();
  ++comebacks_;
  TP_POINT("client.resubmitted");
  Tell(options_, "memserver is back after " + FormatNs(patience.WaitedNs()) +
                     "; requests sent again: " + std::to_string(sent_again));
  return Status();
}

// Copies that the former server completed for streams are not requested again: a fetch may have
// been used and overwritten since, and a gradient is in kept memory (shm/flag_pages.h).
void MemClient::SettleCopied() {
  if (flags_.is_null()) return;
  requests_.ForEachUnanswered([this](Ticket ticket, RequestLog::Entry* entry) {
    const shm::Request& request = entry->request;
    if (!IsCopy(request) || !flags_.IsDone(ticket)) return;
    const bool known = request.chunk < element_bytes_.size();
    const bool is_sum =
        sums_gradients_ && request.op == static_cast<uint32_t>(shm::Op::kSubmitGradient);
    const uint64_t element_bytes = is_sum  ? sizeof(float)
                                   : known ? element_bytes_[request.chunk]
                                           : 0;

    const uint64_t bytes = request.element_count * element_bytes;
    entry->outcome.emplace(Outcome{request.version, bytes, 0, false});
  });
}

Status MemClient::Rejoin(int64_t timeout_ns, size_t* sent_again) {
  SettleCopied();
  shm::ResumeFrame frame;
  frame.rank = who_.rank;
  frame.nonce = who_.nonce;
  frame.job_nonce = session_.job_nonce;
  frame.rcache_bytes = session_.attachment.rcache_bytes;
  frame.rcache = KindOf(options_.brought ? &*options_.brought : nullptr);
  std::vector<int> memory{options_.brought ? options_.brought->descriptor : session_.rcache->fd()};

  if (options_.brought) {
    memory.push_back(session_.flags->fd());
    frame.flags_base = requests_.TicketsAhead();
  }

  TP_ASSIGN_OR_RETURN(ReturnedLink link,
                      ComeBackOnce(clock_, socket_dir_, frame, memory, timeout_ns));
  channel_ = std::move(link.channel);
  session_.port = std::move(link.session.port);
  session_.attachment.session = link.session.session;
  session_.attachment.takes_zeros =
      !options_.brought && session_.port->protocol() >= shm::kAbiZeros;
  TP_ASSIGN_OR_RETURN(*sent_again, SendAgain());
  return Status();
}

Result<size_t> MemClient::SendAgain() {
  const std::vector<shm::Request> requests = requests_.Renumber();
  if (!flags_.is_null()) {
    parked_.Park(requests);
    SendParked();
  }
  for (size_t i = 0; flags_.is_null() && i < requests.size(); ++i) {
    const shm::More more = i + 1 < requests.size() ? shm::More::kYes : shm::More::kNo;
    if (!Push(requests[i], more))
      return Status(ErrorId::kHandshakeBad, "the new request ring has no room");
  }

  if (!schedule_.empty() && !TP_PLANTED("client.schedule_not_sent_again"))
    TP_RETURN_IF_ERROR(SendSchedule());
  if (stream_ && !stream_->ended) {
    stream_->ended = Status(ErrorId::kServerGone, "memserver has ended while it gave states away");
  }
  if (steps_ && !steps_->ended)
    steps_->ended = Status(ErrorId::kServerGone, "memserver has ended while it gave steps away");
  if (save_ && !save_->result) TP_RETURN_IF_ERROR(save_->SendTo(&channel_));
  return requests.size();
}

// The words that these requests' streams wait for are stored here (TakeCompletions).
void MemClient::SendParked() {
  while (const shm::Request* request = parked_.Ready(flags_, requests_)) {
    if (!Push(*request, shm::More::kNo)) return;
    parked_.Sent();
  }
}

// Waits until all parked requests are sent: no later request may overtake them.
Status MemClient::AwaitParked() {
  const int64_t end = clock_->NowNs() + options_.wait_timeout_ns - parked_ns_;
  while (parked_.any()) {
    TakeCompletions();
    TP_RETURN_IF_ERROR(ended_.ok() ? CheckSession() : ended_);
    if (clock_->NowNs() > end + parked_ns_) {
      return Status(ErrorId::kWaitTimeout,
                    "the streams of this rank have not come to where memory is free for a request "
                    "of before memserver ended");
    }

    if (parked_.any()) session_.port->WaitForCompletion(clock_, kParkedLookNs, 0);
  }
  return Status();
}

}  // namespace tidepool::client
