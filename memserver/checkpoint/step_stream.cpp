#include "memserver/checkpoint/step_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "base/checkpoint/step_log.h"
#include "base/point.h"
#include "memserver/checkpoint/stream_ring.h"
#include "shm/state_stream.h"

namespace tidepool::memserver {
namespace {

constexpr int64_t kFeedLookNs = 100 * kNsPerMs;  // interval of looking at the reader between steps

LoggedStep LoggedOf(const StepRecord& record) {
  return {.version = record.version,
          .optimizer_step = record.optimizer_step,
          .data_cursor = record.data_cursor,
          .random_state = record.random_state,
          .grad_norm = record.grad_norm,
          .learning_rate = record.learning_rate,
          .loss_scale = record.loss_scale,
          .gradient_scale = record.gradient_scale,
          .scaler_steps = record.scaler_steps,
          .skipped = record.skipped};
}

class StepStream {
 public:
  StepStream(const StepTask& task, const Clock& clock, const std::atomic<bool>& stop,
             int64_t stuck_ns)
      : task_(task),
        ring_({.memory = task.memory->data(),
               .clock = &clock,
               .stop = &stop,
               .asker_gone = task.asker_gone.get(),
               .stuck_ns = stuck_ns,
               .what = "the log of steps"}) {}

  Status All() {
    for (;;) {
      const std::optional<SealedStep> step = task_.feed->Take(kFeedLookNs);
      const std::string why = task_.feed->abandoned();
      if (!why.empty())
        return Status(ErrorId::kSaveFailed, "the log of steps was given up").Why(why);

      if (step) {
        TP_RETURN_IF_ERROR(WriteStep(*step));
        continue;
      }
      if (task_.feed->ended()) return {};
      TP_RETURN_IF_ERROR(ring_.Check());
    }
  }

  void End(shm::StreamEnd end) { ring_.End(end); }

 private:
  Status WriteStep(const SealedStep& step) {
    const Version version = step.record.version;
    const size_t chunks = step.record.skipped != 0 ? 0 : task_.states->spec().chunks.size();
    for (size_t i = 0; i < chunks; ++i) {
      const ChunkId id = step.order == nullptr ? static_cast<ChunkId>(i) : (*step.order)[i];
      TP_RETURN_IF_ERROR(WriteChunk(task_.states->saved(id)));
      task_.feed->Open(id, version);
      task_.opened();
      TP_POINT("server.gradients_streamed");
      if (!task_.feed->abandoned().empty()) return {};
    }

    const LoggedStep logged = LoggedOf(step.record);
    TP_RETURN_IF_ERROR(ring_.AwaitSlot());
    std::memcpy(ring_.slot(), &logged, sizeof logged);
    ring_.Give({.plane = shm::kStreamStep, .bytes = sizeof logged});
    TP_POINT("server.step_streamed");
    return {};
  }

  // The gradients of all parameters of the chunk, one behind the other, in as few pieces as they
  // fit into.
  Status WriteChunk(const Chunk& chunk) {
    const uint64_t element = BytesOf(chunk.gradient_type);
    shm::StreamPiece piece{.plane = shm::kStreamGradients};
    for (ParameterId p = chunk.first_parameter; p < chunk.first_parameter + chunk.parameters; ++p) {
      const shm::ParameterSpec& parameter = task_.states->spec().parameters[p];
      const std::byte* const from = chunk.planes.gradient + parameter.element_begin * element;
      const uint64_t bytes = parameter.element_count * element;

      for (uint64_t done = 0; done < bytes;) {
        if (piece.bytes == 0) {
          TP_RETURN_IF_ERROR(ring_.AwaitSlot());
          piece.parameter = p;
          piece.first = done;
        }
        const uint64_t some = std::min(bytes - done, shm::kStreamSlotBytes - piece.bytes);
        std::memcpy(ring_.slot() + piece.bytes, from + done, some);

        piece.bytes += some;
        done += some;
        if (piece.bytes == shm::kStreamSlotBytes) Give(&piece);
      }
    }
    if (piece.bytes > 0) Give(&piece);
    return {};
  }

  void Give(shm::StreamPiece* piece) {
    ring_.Give(*piece);
    piece->bytes = 0;
  }

  const StepTask& task_;
  StreamRing ring_;
};

}  // namespace

void StepFeed::Push(SealedStep step) {
  if (step.record.skipped == 0) due_ = step.record.version;
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) return;
    steps_.push_back(std::move(step));
  }
  pushed_.notify_one();
}

void StepFeed::Close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  pushed_.notify_one();
}

void StepFeed::Abandon(std::string why) {
  {
    const std::scoped_lock lock(mutex_);
    if (abandoned_.empty()) abandoned_ = std::move(why);
  }
  pushed_.notify_one();
}

std::optional<SealedStep> StepFeed::Take(int64_t wait_ns) {
  std::unique_lock lock(mutex_);
  pushed_.wait_for(lock, std::chrono::nanoseconds(wait_ns),
                   [this] { return !steps_.empty() || closed_ || !abandoned_.empty(); });
  if (steps_.empty()) return {};
  SealedStep step = std::move(steps_.front());
  steps_.pop_front();
  return step;
}

bool StepFeed::ended() {
  const std::scoped_lock lock(mutex_);
  return closed_ && steps_.empty();
}

std::string StepFeed::abandoned() {
  const std::scoped_lock lock(mutex_);
  return abandoned_;
}

Status WriteSteps(const StepTask& task, const Clock& clock, const std::atomic<bool>& stop,
                  int64_t stuck_ns) {
  shm::StreamHead* const head = shm::HeadOf(task.memory->data());
  head->magic = shm::kStreamMagic;
  head->version = task.version;
  StepStream stream(task, clock, stop, stuck_ns);
  Status written = stream.All();
  stream.End(written.ok() ? shm::StreamEnd::kWhole : shm::StreamEnd::kFailed);
  return written;
}

}  // namespace tidepool::memserver
