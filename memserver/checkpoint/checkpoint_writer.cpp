#include "memserver/checkpoint/checkpoint_writer.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <string>
#include <utility>

#include "base/last_words.h"
#include "base/log.h"
#include "memserver/checkpoint/apart_save.h"

namespace tidepool::memserver {

CheckpointWriter::CheckpointWriter(EventQueue<SaveRequest>* requests, EventQueue<SaveResult>* results, const Clock* clock,
                                   int64_t timeout_ns)
    : requests_(requests), results_(results), clock_(clock), timeout_ns_(timeout_ns), stop_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_event_.valid()) EndForWantOf("descriptor for an event");
  thread_ = std::thread(&CheckpointWriter::Main, this);
}

CheckpointWriter::~CheckpointWriter() {
  stop_.store(true, std::memory_order_relaxed);
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(stop_event_.get(), &one, sizeof one);
  thread_.join();
}

void CheckpointWriter::Main() {
  std::vector<SaveRequest> batch;
  while (!stop_.load(std::memory_order_relaxed)) {
    std::array<pollfd, 2> events = {pollfd{requests_->event_fd(), POLLIN, 0}, pollfd{stop_event_.get(), POLLIN, 0}};
    (void)poll(events.data(), events.size(), -1);  // an interrupted poll finds nothing and is repeated
    requests_->ClearEvent();
    requests_->TakeAll(&batch);
    ServeAll(&batch);
  }
  // The last look: what was pushed before the stop is answered too.
  requests_->TakeAll(&batch);
  ServeAll(&batch);
}

void CheckpointWriter::ServeAll(std::vector<SaveRequest>* batch) {
  for (SaveRequest& request : *batch) {
    const int64_t begin = clock_->NowNs();
    const std::string file = request.name;
    const size_t tensors = request.tensors.size();
    Status status = SaveApart(std::move(request), {.clock = clock_, .timeout_ns = timeout_ns_, .grace_ns = kGraceNs, .stop = &stop_});
    const double seconds = static_cast<double>(clock_->NowNs() - begin) / kNsPerSecond;
    if (status.ok()) {
      LogInfo("weights saved", {{"file", file}, {"tensors", tensors}, {"seconds", seconds}});
    } else {
      LogWarn("saving weights failed", {{"file", file}, {"error", status.Line()}});
    }
    results_->Push({.connection = request.connection, .result = std::move(status)});
  }
  batch->clear();
}

}  // namespace tidepool::memserver
