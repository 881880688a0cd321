#include "trainer/output/writer_lane.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/event_queue.h"
#include "base/system/last_words.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kEndNs = 2 * kNsPerSecond;

}  // namespace

struct WriterLane::Shared {
  EventQueue<Job> jobs;
  UniqueFd progressed{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<uint64_t> done{0};
  std::atomic<bool> has_ended{false};  // the lane has no owner any more
  std::atomic<bool> has_failed{false};
  Status failure;  // written before has_failed is set
};

WriterLane::WriterLane(size_t jobs_max, const Clock* clock)
    : jobs_max_(jobs_max), clock_(clock), shared_(std::make_shared<Shared>()) {
  if (!shared_->progressed.valid()) DieOutOf("descriptor for an event");
  std::thread([shared = shared_] { Run(shared); }).detach();
}

WriterLane::~WriterLane() {
  AwaitIdle(kEndNs);
  shared_->has_ended.store(true, std::memory_order_release);
  shared_->jobs.Push([] { return Status(); });  // wakes the thread
}

void WriterLane::Run(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), "tp-reports");
  std::vector<Job> jobs;
  while (!shared->has_ended.load(std::memory_order_acquire)) {
    pollfd polled{.fd = shared->jobs.event_fd(), .events = POLLIN, .revents = 0};
    poll(&polled, 1, -1);
    shared->jobs.ClearEvent();
    shared->jobs.TakeAll(&jobs);

    for (Job& job : jobs) {
      if (shared->has_ended.load(std::memory_order_acquire)) return;
      if (!shared->has_failed.load(std::memory_order_relaxed)) {
        shared->failure = job();
        if (!shared->failure.ok()) shared->has_failed.store(true, std::memory_order_release);
      }
      job = nullptr;
      shared->done.fetch_add(1, std::memory_order_release);
      eventfd_write(shared->progressed.get(), 1);
    }
  }
}

bool WriterLane::Push(Job job) {
  if (pushed_ - shared_->done.load(std::memory_order_acquire) >= jobs_max_) return false;
  ++pushed_;
  shared_->jobs.Push(std::move(job));
  return true;
}

bool WriterLane::idle() const {
  return shared_->done.load(std::memory_order_acquire) == pushed_;
}

bool WriterLane::AwaitIdle(int64_t timeout_ns) {
  const int64_t end_ns = clock_->NowNs() + timeout_ns;

  while (!idle()) {
    const int64_t left_ns = end_ns - clock_->NowNs();
    if (left_ns <= 0) return false;
    pollfd polled{.fd = shared_->progressed.get(), .events = POLLIN, .revents = 0};
    poll(&polled, 1, static_cast<int>(left_ns / kNsPerMs) + 1);
    eventfd_t count = 0;
    eventfd_read(shared_->progressed.get(), &count);
  }
  return true;
}

Status WriterLane::failure() const {
  return shared_->has_failed.load(std::memory_order_acquire) ? shared_->failure : Status();
}

}  // namespace tidepool::trainer
