#include "base/log_queue.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/planted.h"
#include "base/system/poll_left.h"

namespace tidepool {

namespace {

constexpr int64_t kForEver = INT64_MAX;

}  // namespace

bool WriteWithin(int fd, std::string_view text, int64_t timeout_ns) {
  int64_t left_ns = timeout_ns;
  while (!text.empty()) {
    pollfd entry{fd, POLLOUT, 0};
    const int ready = PollLeft(&entry, &left_ns);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    // A writable pipe takes this much at once.
    const ssize_t done = write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (done < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (done > 0) text.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

struct LogQueue::State {
  int fd = -1;
  std::function<std::string(uint64_t)> about_dropped;
  std::mutex mutex;  // held for a few instructions
  std::condition_variable filled;
  std::deque<std::string> lines;  // guarded by mutex, as all below
  size_t bytes = 0;
  uint64_t dropped = 0;
  bool writing = false;

  std::string Next() {
    std::unique_lock lock(mutex);
    writing = false;
    filled.wait(lock, [this] { return !lines.empty() || dropped > 0; });
    writing = true;
    if (dropped > 0 && lines.empty()) return about_dropped(std::exchange(dropped, 0));
    std::string line = std::move(lines.front());
    lines.pop_front();
    bytes -= line.size();
    return line;
  }
};

LogQueue::LogQueue(int fd, std::function<std::string(uint64_t)> about_dropped)
    : state_(std::make_shared<State>()) {
  state_->fd = fd;
  state_->about_dropped = std::move(about_dropped);
  std::thread writer([state = state_] {
    pthread_setname_np(pthread_self(), "tp-log");
    for (;;) WriteWithin(state->fd, state->Next(), kForEver);
  });
  writer.detach();
}

void LogQueue::Push(std::string line) {
  if (TP_PLANTED("log.waits_for_reader")) {
    WriteWithin(state_->fd, line, kForEver);
    return;
  }

  {
    const std::lock_guard lock(state_->mutex);
    if (state_->bytes + line.size() > kBytesMax) {
      ++state_->dropped;
      return;
    }
    state_->bytes += line.size();
    state_->lines.push_back(std::move(line));
  }

  state_->filled.notify_one();
}

bool LogQueue::Flush(int64_t timeout_ns) {
  for (int64_t left_ns = timeout_ns;; left_ns -= kNsPerMs) {
    // A thread that dies out of memory may hold the lock.
    if (std::unique_lock lock(state_->mutex, std::try_to_lock); lock.owns_lock()) {
      if (state_->lines.empty() && state_->dropped == 0 && !state_->writing) return true;
    }
    if (left_ns <= 0) return false;
    poll(nullptr, 0, 1);
  }
}

}  // namespace tidepool
