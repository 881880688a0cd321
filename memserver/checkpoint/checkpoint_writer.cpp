#include "memserver/checkpoint/checkpoint_writer.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <system_error>
#include <utility>

#include "base/system/last_words.h"
#include "base/log.h"
#include "base/planted.h"
#include "memserver/checkpoint/apart_save.h"
#include "shm/state_stream.h"

namespace tidepool::memserver {

CheckpointWriter::CheckpointWriter(EventQueue<SaveRequest>* requests,
                                   EventQueue<SaveResult>* results, const Clock* clock,
                                   int64_t timeout_ns)
    : requests_(requests),
      results_(results),
      clock_(clock),
      timeout_ns_(timeout_ns),
      woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!woken_.valid()) DieOutOf("descriptor for an event");
  thread_ = std::thread(&CheckpointWriter::Main, this);
}

CheckpointWriter::~CheckpointWriter() {
  stop_.store(true, std::memory_order_relaxed);
  Ring(woken_);
  thread_.join();
}

void CheckpointWriter::Ring(const UniqueFd& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(event.get(), &one, sizeof one);
}

void CheckpointWriter::Main() {
  std::vector<SaveRequest> batch;
  while (!stop_.load(std::memory_order_relaxed)) {
    std::array<pollfd, 2> events = {pollfd{requests_->event_fd(), POLLIN, 0},
                                    pollfd{woken_.get(), POLLIN, 0}};
    // An interrupted poll finds nothing and is repeated.
    (void)poll(events.data(), events.size(), -1);
    requests_->ClearEvent();
    uint64_t rings = 0;
    [[maybe_unused]] const auto n = read(woken_.get(), &rings, sizeof rings);

    requests_->TakeAll(&batch);
    BeginAll(&batch);
    std::erase_if(running_, [](const auto& save) {
      if (!save->ended.load(std::memory_order_acquire)) return false;
      save->thread.join();
      return true;
    });
  }

  // The last look: requests pushed before the stop are answered too.
  requests_->TakeAll(&batch);
  BeginAll(&batch);
  for (const auto& save : running_) save->thread.join();
}

void CheckpointWriter::BeginAll(std::vector<SaveRequest>* batch) {
  for (SaveRequest& request : *batch) {
    if (TP_PLANTED("checkpoint.one_after_the_other")) {
      Serve(std::move(request));
      continue;
    }
    // If no thread can be made, the request is still here to be answered.
    const auto shared = std::make_shared<SaveRequest>(std::move(request));
    auto running = std::make_unique<Running>();

    try {
      running->thread = std::thread([this, shared, save = running.get()] {
        Serve(std::move(*shared));
        save->ended.store(true, std::memory_order_release);
        Ring(woken_);
      });
    } catch (const std::system_error& error) {
      Answer(shared->connection, shared->name,
             Status(ErrorId::kSaveFailed, "memserver has no thread for a save").Why(error.what()));
      continue;
    }

    running_.push_back(std::move(running));
  }
  batch->clear();
}

void CheckpointWriter::Serve(SaveRequest request) {
  pthread_setname_np(pthread_self(), request.steps ? "tp-steps" : "tp-save-read");
  const int64_t begin = clock_->NowNs();
  const ConnectionId connection = request.connection;
  const std::string file = request.name;
  if (request.stream) return Stream(std::move(request));
  if (request.steps) return StreamSteps(std::move(request));
  if (request.list) request.tensors = std::exchange(request.list, {})();
  const size_t tensors = request.tensors.size();
  const int64_t timeout_ns = std::max<int64_t>(timeout_ns_ - request.waited_ns, 0);

  Status status =
      SaveApart(std::move(request),
                {.clock = clock_, .timeout_ns = timeout_ns, .grace_ns = kGraceNs, .stop = &stop_});
  const double seconds = static_cast<double>(clock_->NowNs() - begin) / kNsPerSecond;

  if (status.ok())
    LogInfo("weights saved", {{"file", file}, {"tensors", tensors}, {"seconds", seconds}});
  Answer(connection, file, std::move(status));
}

void CheckpointWriter::Stream(SaveRequest request) {
  const int64_t begin = clock_->NowNs();
  request.stream->opened = [this, connection = request.connection] {
    results_->Push({.connection = connection, .result = {}, .goes_on = true});
  };

  Status status = WriteStream(*request.stream, *clock_, stop_, shm::kStreamStuckNs);
  const double seconds = static_cast<double>(clock_->NowNs() - begin) / kNsPerSecond;
  if (status.ok())
    LogInfo("states streamed", {{"version", request.stream->step.version}, {"seconds", seconds}});
  // From here on only the reader has the memory.
  request.stream.reset();
  request.lane.reset();
  Answer(request.connection, request.name, std::move(status));
}

void CheckpointWriter::StreamSteps(SaveRequest request) {
  request.steps->opened = [this, connection = request.connection] {
    results_->Push({.connection = connection, .result = {}, .goes_on = true, .of_steps = true});
  };

  Status status = WriteSteps(*request.steps, *clock_, stop_, shm::kStreamStuckNs);
  if (!status.ok()) LogWarn("a log of steps ends", {{"error", status.Line()}});
  request.steps.reset();
  results_->Push({.connection = request.connection, .result = std::move(status), .of_steps = true});
}

void CheckpointWriter::Answer(ConnectionId connection, const std::string& file, Status status) {
  if (!status.ok()) LogWarn("saving weights failed", {{"file", file}, {"error", status.Line()}});
  results_->Push({.connection = connection, .result = std::move(status)});
}

}  // namespace tidepool::memserver
