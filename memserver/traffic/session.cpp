#include "memserver/traffic/session.h"

#include <algorithm>
#include <utility>

#include "base/planted.h"

namespace tidepool::memserver {

Session::Session(Parts parts)
    : id_(parts.id),
      rank_(parts.rank),
      port_(std::move(parts.port)),
      rcache_(std::move(parts.rcache)),
      brought_(std::move(parts.brought)),
      flags_(brought_.flags != nullptr ? brought_.flags->data() : nullptr),
      flags_base_(brought_.flags_base),
      lane_(parts.gpu != nullptr ? CopyLane(parts.gpu, kOutstandingMax, flags_, flags_base_)
                                 : CopyLane(std::move(parts.stream), kOutstandingMax)),
      waiting_(kOutstandingMax) {}

bool Session::MayBegin(const shm::Request& request) const {
  if (request.op == static_cast<uint32_t>(shm::Op::kClaimFrozen)) return true;
  return (!shm::HasFlags(request) || flags_.IsReady(flags_base_ + request.counter)) && lane_.HasRoom(request);
}

bool Session::HoldsBrought(const shm::Request& request) {
  const bool holds = !MayBegin(request);
  held_.set(request.counter % kOutstandingMax, holds);
  return holds;
}

bool Session::HasReleased() const {
  if (held_.none()) return false;
  const auto released = [this](const shm::Request& request) { return held_.test(request.counter % kOutstandingMax) && MayBegin(request); };
  return std::any_of(waiting_.requests().begin(), waiting_.requests().end(), released);
}

Session::Remains Session::Dissolve(std::unique_ptr<Session> session) {
  Remains remains{std::move(session->port_), std::move(session->rcache_), std::move(session->brought_)};
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
  if (completion.error != 0) WriteDone(completion.counter);
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
