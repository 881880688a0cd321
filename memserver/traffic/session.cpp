#include "memserver/traffic/session.h"

#include <utility>

#include "base/planted.h"

namespace tidepool::memserver {

Session::Session(Parts parts)
    : id_(parts.id),
      rank_(parts.rank),
      port_(std::move(parts.port)),
      rcache_(std::move(parts.rcache)),
      lane_(std::move(parts.stream), kOutstandingMax),
      waiting_(kOutstandingMax) {}

Session::Remains Session::Dissolve(std::unique_ptr<Session> session) {
  Remains remains{std::move(session->port_), std::move(session->rcache_)};
  session.reset();  // the lane goes while the memory is still mapped
  return remains;
}

shm::PopResult Session::Take(shm::Request* request, const char** why) {
  const shm::PopResult popped = port_->Pop(request);
  if (popped == shm::PopResult::kViolation) *why = "the positions in the request ring are impossible";
  if (popped != shm::PopResult::kItem) return popped;
  ++taken_;
  if (request->counter != taken_) {
    *why = "the request counter does not follow the one before";
    return shm::PopResult::kViolation;
  }
  if (taken_ - answered_ > kOutstandingMax) {
    *why = "more requests are unanswered than the ring holds";
    return shm::PopResult::kViolation;
  }
  return shm::PopResult::kItem;
}

bool Session::Answer(const shm::Completion& completion) {
  if (TP_PLANTED("traffic.answer_dropped") && answered_ % 50 == 49) return ++answered_ > 0;
  if (!port_->Push(completion)) return false;
  ++answered_;
  wake_due_ = true;
  return true;
}

void Session::WakeIfAnswered() {
  if (!wake_due_) return;
  wake_due_ = false;
  port_->Wake();
}

shm::Completion Failure(const shm::Request& request, ErrorId error) {
  shm::Completion completion{};
  completion.counter = request.counter;
  completion.op = request.op;
  completion.error = static_cast<uint32_t>(error);
  return completion;
}

}  // namespace tidepool::memserver
