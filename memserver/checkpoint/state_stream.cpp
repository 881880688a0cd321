#include "memserver/checkpoint/state_stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/formats/split_float.h"
#include "base/point.h"
#include "base/system/futex.h"
#include "shm/messages.h"
#include "shm/state_stream.h"

namespace tidepool::memserver {
namespace {

constexpr int64_t kLookNs = 100 * kNsPerMs;  // poll interval of the stop mark

class Stream {
 public:
  Stream(const StreamTask& task, const Clock& clock, const std::atomic<bool>& stop,
         int64_t stuck_ns)
      : task_(task),
        clock_(clock),
        stop_(stop),
        stuck_ns_(stuck_ns),
        memory_(task.memory->data()),
        head_(shm::HeadOf(memory_)) {}

  Status All() {
    for (const ChunkId id : task_.order) {
      TP_RETURN_IF_ERROR(WriteChunk(id));
      task_.gate->Open(id);
      task_.opened();
      TP_POINT("server.chunk_streamed");
    }
    return {};
  }

  void End(shm::StreamEnd end) {
    head_->pieces = given_;
    head_->end.store(static_cast<uint32_t>(end), std::memory_order_release);
    head_->given.store(given_ + 1, std::memory_order_release);
    WakeWord(&head_->given);
  }

 private:
  Status WriteChunk(ChunkId id) {
    const Chunk& chunk = task_.states->saved(id);
    for (ParameterId p = chunk.first_parameter; p < chunk.first_parameter + chunk.parameters; ++p) {
      TP_RETURN_IF_ERROR(WriteMaster(chunk, p));
      TP_RETURN_IF_ERROR(WriteMoment(chunk, p, shm::kPutMomentum, chunk.planes.momentum));
      TP_RETURN_IF_ERROR(WriteMoment(chunk, p, shm::kPutVariance, chunk.planes.variance));
    }
    return {};
  }

  Status WriteMaster(const Chunk& chunk, ParameterId id) {
    const shm::ParameterSpec& parameter = task_.states->spec().parameters[id];
    constexpr uint64_t kMost = shm::kStreamSlotBytes / sizeof(float);
    for (uint64_t first = 0; first < parameter.element_count; first += kMost) {
      const uint64_t count = std::min(kMost, parameter.element_count - first);
      TP_RETURN_IF_ERROR(AwaitSlot());
      auto* const to = reinterpret_cast<float*>(shm::SlotOf(memory_, given_));
      const uint64_t from = parameter.element_begin + first;

      if (chunk.is_split()) {
        const auto* high = reinterpret_cast<const uint16_t*>(chunk.planes.param16) + from;
        const auto* rest = reinterpret_cast<const int16_t*>(chunk.planes.master) + from;
        for (uint64_t i = 0; i < count; ++i) to[i] = Join(high[i], rest[i]);
      } else {
        std::memcpy(to, chunk.planes.master + from * sizeof(float), count * sizeof(float));
      }
      Give({id, shm::kPutMaster, first, count * sizeof(float)});
    }
    return {};
  }

  Status WriteMoment(const Chunk& chunk, ParameterId id, uint32_t plane, const std::byte* from) {
    if (from == nullptr) return {};
    const shm::ParameterSpec& parameter = task_.states->spec().parameters[id];
    const uint64_t element = chunk.states == StateForm::kSplitBf16 ? 2 : 4;
    const uint64_t most = shm::kStreamSlotBytes / element;
    for (uint64_t first = 0; first < parameter.element_count; first += most) {
      const uint64_t count = std::min(most, parameter.element_count - first);
      TP_RETURN_IF_ERROR(AwaitSlot());

      std::memcpy(shm::SlotOf(memory_, given_), from + (parameter.element_begin + first) * element,
                  count * element);
      Give({id, plane, first, count * element});
    }
    return {};
  }

  // Waits until the reader has emptied the next slot.
  Status AwaitSlot() {
    int64_t end = clock_.NowNs() + stuck_ns_;
    for (;;) {
      const uint32_t taken = head_->taken.load(std::memory_order_acquire);
      if (taken != taken_) end = clock_.NowNs() + stuck_ns_;
      const bool lies = taken - taken_ > given_ - taken_;
      if (head_->left.load(std::memory_order_acquire) != 0 || lies)
        return Failed("the process that writes it has ended");
      taken_ = taken;
      if (given_ - taken_ < shm::kStreamSlots) return {};

      if (stop_.load(std::memory_order_relaxed)) return Failed("memserver ends");
      if (clock_.NowNs() >= end)
        return Failed("the process that writes it takes nothing: its file system does not answer");
      WaitOnWord(&head_->taken, taken, kLookNs);
    }
  }

  static Status Failed(const char* why) {
    return Status(ErrorId::kSaveFailed, "a checkpoint was given up").Why(why);
  }

  void Give(const shm::StreamPiece& piece) {
    *shm::PieceOf(memory_, given_) = piece;
    head_->given.store(++given_, std::memory_order_release);
    WakeWord(&head_->given);
  }

  const StreamTask& task_;
  const Clock& clock_;
  const std::atomic<bool>& stop_;
  const int64_t stuck_ns_;
  std::byte* const memory_;
  shm::StreamHead* const head_;
  uint32_t given_ = 0, taken_ = 0;
};

}  // namespace

Status WriteStream(const StreamTask& task, const Clock& clock, const std::atomic<bool>& stop,
                   int64_t stuck_ns) {
  shm::StreamHead* const head = shm::HeadOf(task.memory->data());
  head->magic = shm::kStreamMagic;
  head->version = task.step.version;
  head->optimizer_step = task.step.optimizer_step;
  head->data_cursor = task.step.data_cursor;
  head->random_state = task.step.random_state;
  head->loss_scale = task.step.loss_scale;
  head->scaler_steps = task.step.scaler_steps;

  Stream stream(task, clock, stop, stuck_ns);
  Status written = stream.All();
  stream.End(written.ok() ? shm::StreamEnd::kWhole : shm::StreamEnd::kFailed);
  return written;
}

}  // namespace tidepool::memserver
