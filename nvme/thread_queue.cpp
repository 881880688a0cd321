#include "nvme/thread_queue.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/last_words.h"

namespace tidepool::nvme {
namespace {

int32_t Execute(const IoRequest& request, int fd) {
  const auto offset = static_cast<off_t>(request.offset);
  ssize_t moved = 0;
  switch (request.kind) {
    case IoKind::kRead: moved = pread(fd, request.data, request.bytes, offset); break;
    case IoKind::kWrite: moved = pwrite(fd, request.data, request.bytes, offset); break;
    case IoKind::kSync: moved = fdatasync(fd); break;
  }
  return moved < 0 ? -errno : static_cast<int32_t>(moved);
}

}  // namespace

ThreadQueue::ThreadQueue(const IoQueueOptions& options)
    : depth_(options.depth),
      files_(options.files),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      waiting_(options.depth),
      ended_(options.depth) {
  if (!event_.valid()) EndForWantOf("descriptor for an event");
  for (uint32_t i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this] { Main(); });
    pthread_setname_np(threads_.back().native_handle(), "tp-disk");
  }
}

ThreadQueue::~ThreadQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  there_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::Submit(const IoRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    TP_CHECK(waiting_end_ - waiting_begin_ < depth_, "no more requests are out than the queue has places");
    waiting_[waiting_end_++ % depth_] = request;
  }
  there_.notify_one();
}

void ThreadQueue::Main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    there_.wait(lock, [this] { return stopping_ || waiting_begin_ < waiting_end_; });
    if (stopping_) return;
    const IoRequest request = waiting_[waiting_begin_++ % depth_];
    lock.unlock();
    const int32_t value = Execute(request, files_[request.file]);
    lock.lock();
    ended_[ended_end_++ % depth_] = {request.tag, value};
    (void)eventfd_write(event_.get(), 1);
  }
}

std::optional<IoDone> ThreadQueue::Reap() {
  const std::lock_guard lock(mutex_);
  if (ended_begin_ == ended_end_) return std::nullopt;
  const Ended ended = ended_[ended_begin_++ % depth_];
  return std::optional<IoDone>(IoDone{ended.tag, IoResult(ended.value)});
}

void ThreadQueue::ClearEvent() {
  eventfd_t count = 0;
  (void)eventfd_read(event_.get(), &count);
}

std::string ThreadQueue::Name() const {
  return std::to_string(threads_.size()) + " threads with pread and pwrite";
}

}  // namespace tidepool::nvme
