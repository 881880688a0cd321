#include "memserver/checkpoint/state_stream.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/formats/optimizer.h"
#include "base/formats/split_float.h"
#include "base/point.h"
#include "memserver/checkpoint/stream_ring.h"
#include "shm/messages.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_footprint.h"
#include "shm/state_stream.h"

namespace tidepool::memserver {
namespace {

class Stream {
 public:
  Stream(const StreamTask& task, const Clock& clock, const std::atomic<bool>& stop,
         int64_t stuck_ns)
      : task_(task),
        ring_({.memory = task.memory->data(),
               .clock = &clock,
               .stop = &stop,
               .asker_gone = task.asker_gone.get(),
               .asker_reads = task.asker_reads,
               .stuck_ns = stuck_ns}) {}

  Status All() {
    for (const ChunkId id : task_.order) {
      TP_RETURN_IF_ERROR(WriteChunk(id));
      task_.gate->Open(id);
      task_.opened();
      TP_POINT("server.chunk_streamed");
    }
    return {};
  }

  void End(shm::StreamEnd end) { ring_.End(end); }

 private:
  // The planes of consecutive elements of a chunk. A plane that the chunk does not have is null.
  struct Planes {
    const std::byte* master = nullptr;
    const std::byte* high = nullptr;  // the 16-bit plane of a split master
    const std::byte* momentum = nullptr;
    const std::byte* variance = nullptr;
    const std::byte* momentum_scales = nullptr;
    const std::byte* variance_scales = nullptr;
    uint64_t begin = 0, count = 0;  // elements of the chunk
  };

  // Reads a chunk off the host piece by piece, each piece once.
  Status WriteChunk(ChunkId id) {
    const Chunk& chunk = task_.states->saved(id);
    if (!chunk.states_off_host()) return WriteRange(chunk, OnHost(chunk));
    for (uint32_t piece = 0; piece < chunk.pieces; ++piece) {
      TP_ASSIGN_OR_RETURN(const Planes planes,
                          chunk.spilled ? FromNvme(id, piece) : FromGpu(id, piece));
      TP_RETURN_IF_ERROR(WriteRange(chunk, planes));
    }
    return {};
  }

  static Planes OnHost(const Chunk& chunk) {
    Planes planes{.master = chunk.planes.master,
                  .high = chunk.planes.param16,
                  .momentum = chunk.planes.momentum,
                  .variance = chunk.planes.variance,
                  .count = chunk.elements};
    AddScales(chunk, &planes);
    return planes;
  }

  // The scales of 8-bit moments follow their codes.
  static void AddScales(const Chunk& chunk, Planes* planes) {
    if (chunk.states != StateForm::kSplit8) return;
    const uint64_t at = ScalesOffset(planes->count);
    if (planes->momentum != nullptr) planes->momentum_scales = planes->momentum + at;
    if (planes->variance != nullptr) planes->variance_scales = planes->variance + at;
  }

  static Planes PieceOfChunk(const Chunk& chunk, uint32_t piece) {
    const uint64_t begin = piece * shm::kPieceElements;
    return {.begin = begin, .count = std::min(shm::kPieceElements, chunk.elements - begin)};
  }

  Result<Planes> FromNvme(ChunkId id, uint32_t piece) {
    const Chunk& chunk = task_.states->saved(id);
    Planes planes = PieceOfChunk(chunk, piece);
    const shm::SpilledPiece at = shm::SpilledPieceOf(task_.states->spec(), id, planes.count);
    TP_ASSIGN_OR_RETURN(const auto bytes, task_.spilled->Piece(id, piece));
    const auto plane = [&bytes](uint64_t offset) {
      return offset == shm::SpilledPiece::kNone ? nullptr : bytes.data() + offset;
    };

    planes.master = bytes.data();
    planes.high = plane(at.high);
    planes.momentum = plane(at.momentum);
    planes.variance = plane(at.variance);
    AddScales(chunk, &planes);
    return planes;
  }

  // States on GPUs are fp32 and have both moments (shm/spec/gpu_states.h).
  Result<Planes> FromGpu(ChunkId id, uint32_t piece) {
    Planes planes = PieceOfChunk(task_.states->saved(id), piece);
    const shm::GpuSlot slot = shm::GpuSlotOf(task_.states->spec(), id);
    from_gpu_.resize(3 * shm::kPieceElements);
    const std::byte** const to[] = {&planes.master, &planes.momentum, &planes.variance};
    const uint64_t at[] = {0, slot.momentum, slot.variance};

    for (size_t i : {0, 1, 2}) {
      const std::span values = std::span(from_gpu_).subspan(i * shm::kPieceElements, planes.count);
      TP_RETURN_IF_ERROR(task_.on_gpus->ReadPlane(id, at[i], planes.begin, values));
      *to[i] = reinterpret_cast<const std::byte*>(values.data());
    }
    return planes;
  }

  // Writes the parts of all parameters that lie in these elements.
  Status WriteRange(const Chunk& chunk, const Planes& planes) {
    const uint64_t end = planes.begin + planes.count;
    for (ParameterId p = chunk.first_parameter; p < chunk.first_parameter + chunk.parameters; ++p) {
      const shm::ParameterSpec& parameter = task_.states->spec().parameters[p];
      const uint64_t first = std::max(parameter.element_begin, planes.begin);
      const uint64_t last = std::min(parameter.element_begin + parameter.element_count, end);
      if (first >= last) continue;
      const Part part{.parameter = p,
                      .first = first - parameter.element_begin,
                      .from = first - planes.begin,
                      .count = last - first};
      TP_RETURN_IF_ERROR(WriteMaster(chunk, planes, part));

      const uint64_t element = ElementBytes(chunk.states);
      TP_RETURN_IF_ERROR(Write(shm::kPutMomentum, part, planes.momentum, element));
      TP_RETURN_IF_ERROR(Write(shm::kPutVariance, part, planes.variance, element));
      // Parameters and pieces begin at a block boundary.
      const Part blocks{.parameter = p,
                        .first = part.first / kScaleBlockElements,
                        .from = part.from / kScaleBlockElements,
                        .count = DivideUp(part.count, kScaleBlockElements)};
      TP_RETURN_IF_ERROR(
          Write(shm::kPutMomentumScales, blocks, planes.momentum_scales, sizeof(float)));
      TP_RETURN_IF_ERROR(
          Write(shm::kPutVarianceScales, blocks, planes.variance_scales, sizeof(float)));
    }
    return {};
  }

  // `count` elements of a parameter from its element `first` on; the same are element `from` on of
  // the planes.
  struct Part {
    ParameterId parameter = 0;
    uint64_t first = 0, from = 0, count = 0;
  };

  static uint64_t ElementBytes(StateForm form) {
    return form == StateForm::kSplit8 ? 1 : form == StateForm::kSplitBf16 ? 2 : 4;
  }

  Status WriteMaster(const Chunk& chunk, const Planes& planes, const Part& part) {
    if (!chunk.is_split()) return Write(shm::kPutMaster, part, planes.master, sizeof(float));
    constexpr uint64_t kMost = shm::kStreamSlotBytes / sizeof(float);
    for (uint64_t done = 0; done < part.count; done += kMost) {
      const uint64_t count = std::min(kMost, part.count - done);
      TP_RETURN_IF_ERROR(ring_.AwaitSlot());
      auto* const to = reinterpret_cast<float*>(ring_.slot());
      const auto* high = reinterpret_cast<const uint16_t*>(planes.high) + part.from + done;
      const auto* rest = reinterpret_cast<const int16_t*>(planes.master) + part.from + done;

      for (uint64_t i = 0; i < count; ++i) to[i] = Join(high[i], rest[i]);
      ring_.Give({part.parameter, shm::kPutMaster, part.first + done, count * sizeof(float)});
    }
    return {};
  }

  // Writes a plane unchanged, of `element` bytes per element; skips a null plane.
  Status Write(uint32_t plane, const Part& part, const std::byte* from, uint64_t element) {
    if (from == nullptr) return {};
    const uint64_t most = shm::kStreamSlotBytes / element;
    for (uint64_t done = 0; done < part.count; done += most) {
      const uint64_t count = std::min(most, part.count - done);
      TP_RETURN_IF_ERROR(ring_.AwaitSlot());

      std::memcpy(ring_.slot(), from + (part.from + done) * element, count * element);
      ring_.Give({part.parameter, plane, part.first + done, count * element});
    }
    return {};
  }

  const StreamTask& task_;
  StreamRing ring_;
  std::vector<float> from_gpu_;  // the planes of one piece
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
