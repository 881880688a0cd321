#include "nvme/thread_queue.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/system/last_words.h"
#include "base/units.h"

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
      files_per_line_(std::max<uint32_t>(1, options.files_per_line == 0
                                                ? static_cast<uint32_t>(files_.size())
                                                : options.files_per_line)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      lines_(std::max<uint64_t>(1, DivideUp(files_.size(), files_per_line_))),
      ended_(options.depth) {
  if (!event_.valid()) DieOutOf("descriptor for an event");
  for (Line& line : lines_) line.waiting.resize(depth_);

  for (Line& line : lines_) {
    for (uint32_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this, &line] { Main(&line); });
      pthread_setname_np(threads_.back().native_handle(), "tp-disk");
    }
  }
}

ThreadQueue::~ThreadQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (Line& line : lines_) line.there.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::Submit(const IoRequest& request) {
  Line& line = lines_[request.file / files_per_line_];
  {
    const std::lock_guard lock(mutex_);
    TP_CHECK(line.end - line.begin < depth_, "no more requests are out than the queue has places");
    line.waiting[line.end++ % depth_] = request;
  }
  line.there.notify_one();
}

void ThreadQueue::Main(Line* line) {
  std::unique_lock lock(mutex_);
  for (;;) {
    line->there.wait(lock, [this, line] { return stopping_ || line->begin < line->end; });
    if (stopping_) return;
    const IoRequest request = line->waiting[line->begin++ % depth_];
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
