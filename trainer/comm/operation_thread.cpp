#include "trainer/comm/operation_thread.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/system/last_words.h"
#include "base/planted.h"

namespace tidepool::trainer {

OperationThread::OperationThread() : changed_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!changed_.valid()) DieOutOf("descriptor for an event");
  thread_ = std::thread([this] { Run(); });
}

OperationThread::~OperationThread() {
  events_.Push({});
  thread_.join();
}

uint64_t OperationThread::Start(ThreadOperation operation) {
  events_.Push({.kind = Event::Kind::kStart, .operation = std::move(operation)});
  return ++started_;
}

Status OperationThread::ResultOf(uint64_t number) const {
  return number < failed_from_.load(std::memory_order_acquire) ? Status() : failure_;
}

bool OperationThread::AwaitChange(int wait_ms) {
  pollfd polled{.fd = changed_.get(), .events = POLLIN, .revents = 0};
  if (poll(&polled, 1, wait_ms) == 0) return false;
  eventfd_t count = 0;
  eventfd_read(changed_.get(), &count);
  return true;
}

void OperationThread::PieceEnded(uint64_t number, Status status) {
  events_.Push({.kind = Event::Kind::kPieceEnded, .number = number, .status = std::move(status)});
}

void OperationThread::Run() {
  pthread_setname_np(pthread_self(), "tp-operations");
  while (!leaves_) {
    pollfd polled{.fd = events_.event_fd(), .events = POLLIN, .revents = 0};
    poll(&polled, 1, -1);
    TakeEvents();
    // An operation that ends returns its buffer, and one that begins after a failure ends at once:
    // so repeat both until nothing changes.
    for (uint64_t before = 0; before != oldest_ + next_begun_;) {
      before = oldest_ + next_begun_;
      EndThoseComplete();
      BeginThoseInTurn();
    }
  }
}

void OperationThread::TakeEvents() {
  events_.ClearEvent();
  events_.TakeAll(&taken_);
  for (Event& event : taken_) {
    if (event.kind == Event::Kind::kStart)
      in_work_.push_back({.operation = std::move(event.operation)});
    if (event.kind == Event::Kind::kLeave) leaves_ = true;
    if (event.kind != Event::Kind::kPieceEnded) continue;

    InWork& one = in_work_[event.number - oldest_];
    --one.pieces_left;
    if (one.status.ok()) one.status = std::move(event.status);
  }
}

void OperationThread::EndThoseComplete() {
  bool ended = false;
  while (!in_work_.empty() && in_work_.front().begun && in_work_.front().pieces_left == 0) {
    InWork& one = in_work_.front();
    if (failure_.ok() && !one.status.ok()) {
      failure_ = std::move(one.status);
      failed_from_.store(oldest_, std::memory_order_release);
    }
    std::byte* const parts = one.buffer == nullptr ? nullptr : one.buffer->bytes.get();
    if (failure_.ok() && one.operation.finish) one.operation.finish(parts);
    if (one.buffer != nullptr) one.buffer->lent = false;

    in_work_.pop_front();
    ended_.store(oldest_++, std::memory_order_release);
    ended = true;
  }
  if (ended) eventfd_write(changed_.get(), 1);
}

void OperationThread::BeginThoseInTurn() {
  for (; next_begun_ - oldest_ < in_work_.size(); ++next_begun_) {
    InWork& one = in_work_[next_begun_ - oldest_];
    const bool well = failure_.ok() && !refused_;
    if (well && !Judged(&one)) return;
    refused_ = refused_ || !one.status.ok();

    if (well && one.status.ok()) {
      if (!LendBuffer(&one)) return;
      ThreadOperation::Begun begun = one.operation.begin(
          next_begun_, one.buffer == nullptr ? nullptr : one.buffer->bytes.get());
      one.pieces_left = begun.pieces;
      one.status = std::move(begun.status);
    }

    one.begun = true;
  }
}

bool OperationThread::Judged(InWork* one) {
  if (!one->operation.ask) return true;
  if (!std::exchange(one->asked, true)) {
    ThreadOperation::Begun begun = one->operation.ask(next_begun_);
    one->pieces_left = begun.pieces;
    one->status = std::move(begun.status);
  }

  if (one->pieces_left > 0) return false;
  if (one->status.ok()) one->status = one->operation.judge();
  return true;
}

bool OperationThread::LendBuffer(InWork* one) {
  const uint64_t bytes = one->operation.part_bytes;
  if (bytes == 0) return true;
  const auto is_free = [](const Buffer& buffer) { return !buffer.lent; };
  const auto free = std::find_if(buffers_.begin(), buffers_.end(), is_free);
  if (free == buffers_.end()) return false;
  const auto fits = std::find_if(free, buffers_.end(), [&](const Buffer& buffer) {
    return is_free(buffer) && buffer.size >= bytes;
  });

  Buffer& buffer = fits != buffers_.end() ? *fits : *free;
  if (buffer.size < bytes) {
    part_bytes_.fetch_add(bytes - buffer.size, std::memory_order_relaxed);
    buffer.bytes.reset();  // freed first: never more memory than is counted
    buffer.bytes = std::make_unique_for_overwrite<std::byte[]>(bytes);
    buffer.size = bytes;
  }
  buffer.lent = !TP_PLANTED("comm.buffer_lent_twice");
  one->buffer = &buffer;
  return true;
}

}  // namespace tidepool::trainer
