#include "memserver/traffic/session.h"

#include <utility>

#include "base/hot.h"
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
  return (!shm::HasFlags(request) || flags_.IsReady(flags_base_ + request.counter)) &&
         lane_.HasRoom(request);
}

void Session::Hold(const shm::Request& request, uint64_t bytes) {
  lane_.NoteArrival(request, bytes);
  waiting_.Add(request);
  held_.set(Slot(request));
  has_waited_.reset(Slot(request));
}

void Session::LetWait(const shm::Request& request) {
  if (!has_waited_.test(Slot(request))) ++requests_parked;
  has_waited_.set(Slot(request));
  held_.reset(Slot(request));
}

void Session::Unpark(const shm::Request& request) {
  held_.reset(Slot(request));
  waiting_.Remove(request.counter);
}

const shm::Request* Session::NextToBegin(LaneWay way) const {
  const shm::Request* next = nullptr;
  waiting_.ForEachFirst([&](const shm::Request& request) {
    if (!held_.test(Slot(request)) || CopyLane::WayOf(request) != way || !MayBegin(request)) return;
    if (next == nullptr || lane_.AwaitedAt(request) < lane_.AwaitedAt(*next)) next = &request;
  });
  return next;
}

Session::Remains Session::Dissolve(std::unique_ptr<Session> session) {
  Remains remains{std::move(session->port_), std::move(session->rcache_),
                  std::move(session->brought_)};
  session.reset();  // the lane is destroyed while the memory is still mapped
  return remains;
}

TP_HOT shm::PopResult Session::Take(shm::Request* request, const char** why) {
  const shm::PopResult popped = port_->Pop(request);
  if (popped == shm::PopResult::kViolation)
    *why = "the positions in the request ring are impossible";
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

TP_HOT bool Session::Answer(const shm::Completion& completion) {
  if (TP_PLANTED("traffic.answer_dropped") && answered_ % 50 == 49) return ++answered_ > 0;
  if (completion.error != 0) WriteDone(completion.counter);
  if (!port_->Push(completion)) return false;
  ++answered_;
  wake_due_ = true;
  return true;
}

TP_HOT void Session::WakeIfAnswered() {
  if (!wake_due_) return;
  wake_due_ = false;
  port_->Wake();
}

TP_HOT shm::Completion Success(const shm::Request& request, uint64_t bytes) {
  shm::Completion completion{};
  completion.counter = request.counter;
  completion.op = request.op;
  completion.version = request.version;
  completion.bytes = bytes;
  return completion;
}

shm::Completion Failure(const shm::Request& request, ErrorId error) {
  shm::Completion completion{};
  completion.counter = request.counter;
  completion.op = request.op;
  completion.error = static_cast<uint32_t>(error);
  return completion;
}

}  // namespace tidepool::memserver
