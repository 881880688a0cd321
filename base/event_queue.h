// EventQueue: a queue between two threads with an eventfd that becomes readable when something was
// pushed.
//
// Any thread may Push; one thread owns the consuming side (TakeAll). Used on control paths and for
// done-notices of workers, never inside a copy or an update. Push costs one short lock and, when
// the queue was empty, one write to the eventfd.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/system/last_words.h"
#include "base/unique_fd.h"

namespace tidepool {

template <typename T>
class EventQueue {
 public:
  EventQueue() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_.valid()) DieOutOf("descriptor for an event");
  }

  void Push(T item) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      was_empty = items_.empty();
      items_.push_back(std::move(item));
      filled_.store(true, std::memory_order_release);
    }
    if (was_empty) Notify();
  }

  // Moves everything pushed into `out` (cleared first); true if there was something.
  bool TakeAll(std::vector<T>* out) {
    out->clear();
    // Most calls find nothing. A push that this check misses has made, or will make, the event
    // readable.
    if (!filled_.load(std::memory_order_acquire)) return false;
    const std::lock_guard lock(mutex_);
    filled_.store(false, std::memory_order_relaxed);
    items_.swap(*out);
    return !out->empty();
  }

  // For poll or epoll, level-triggered: call ClearEvent before TakeAll.
  int event_fd() const { return event_.get(); }
  void ClearEvent() {
    uint64_t count = 0;
    [[maybe_unused]] const auto n = read(event_.get(), &count, sizeof count);
  }

 private:
  void Notify() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto n = write(event_.get(), &one, sizeof one);
  }

  UniqueFd event_;
  std::mutex mutex_;
  std::vector<T> items_;             // guarded by mutex_
  std::atomic<bool> filled_{false};  // items_ is not empty; changed under mutex_
};

}  // namespace tidepool
