#include "memserver/update/work.h"

#include <algorithm>

#include "base/formats/optimizer.h"
#include "base/planted.h"
#include "optim/update_rule.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

uint64_t PieceIdentity(const JobStates& states, const HostPool& pool, const void* progress) {
  return (TP_PLANTED("update.piece_named_by_place") ? 1 : states.record().nonce | 1) +
         2 * (pool.OffsetOf(progress) / sizeof(optim::ProgressWord));
}

optim::ProgressWord* ProgressOf(const Chunk& chunk, uint32_t piece) {
  return reinterpret_cast<optim::ProgressWord*>(chunk.progress_words + piece * shm::kProgressBytes);
}

optim::UpdateSpan HostPlanesOf(const Chunk& chunk, uint32_t piece) {
  optim::UpdateSpan whole{.master = chunk.planes.master,
                          .momentum = chunk.planes.momentum,
                          .variance = chunk.planes.variance,
                          .gradient = chunk.planes.gradient,
                          .gradient_dtype = chunk.gradient_type,
                          .param16 = chunk.planes.param16,
                          .param16_dtype = chunk.dtype,
                          .count = chunk.elements,
                          .states = chunk.states};

  if (whole.states == StateForm::kSplit8) {
    const auto scales = [&chunk](std::byte* plane) {
      return plane == nullptr ? nullptr
                              : reinterpret_cast<float*>(plane + ScalesOffset(chunk.elements));
    };
    whole.momentum_scales = scales(chunk.planes.momentum);
    whole.variance_scales = scales(chunk.planes.variance);
  }
  const uint64_t begin = piece * shm::kPieceElements;
  return optim::Slice(whole, begin, std::min(shm::kPieceElements, chunk.elements - begin));
}

namespace {

// Bytes that an update touches: states are read and written, the gradient is read, a 16-bit copy is
// written.
uint64_t BytesTouchedBy(const optim::UpdateSpan& span) {
  const uint64_t moments = (span.momentum == nullptr ? 0 : 1) + (span.variance == nullptr ? 0 : 1);
  const uint64_t copy = span.param16 == nullptr ? 0 : span.count * BytesOf(span.param16_dtype);
  return 2 * (MasterBytes(span.states, span.count) +
              moments * MomentBytes(span.states, span.count)) +
         (IsSplit(span.states) ? 2 : 1) * copy + span.count * BytesOf(span.gradient_dtype);
}

}  // namespace

void PointIntoStaging(const shm::JobSpec& spec, ChunkId chunk, std::span<std::byte> payload,
                      optim::UpdateSpan* planes) {
  const StateForm form = spec.StatesOf(chunk);
  const shm::SpilledPiece at = shm::SpilledPieceOf(spec, chunk, planes->count);
  const auto plane = [&payload](uint64_t begin) {
    return begin == shm::SpilledPiece::kNone ? nullptr : payload.data() + begin;
  };
  const auto scales = [&](std::byte* moment) {
    const bool there = form == StateForm::kSplit8 && moment != nullptr;
    return there ? reinterpret_cast<float*>(moment + ScalesOffset(planes->count)) : nullptr;
  };

  planes->states = form;
  planes->master = payload.data();
  planes->momentum = plane(at.momentum);
  planes->variance = plane(at.variance);
  planes->momentum_scales = scales(plane(at.momentum));
  planes->variance_scales = scales(plane(at.variance));
  if (IsSplit(form)) planes->param16 = plane(at.high);
}

uint64_t BytesTouched(const Work& work) {
  constexpr uint64_t kConvert = 6, kAdd = 12, kScan = 4;  // bytes per element
  switch (work.name.kind) {
    // A staged piece is read once more to be checked and once to be sealed.
    case WorkKind::kUpdate: return BytesTouchedBy(work.planes) + 2 * work.staged.payload.size();
    case WorkKind::kNarrow:
    case WorkKind::kNarrowStored:
    case WorkKind::kWiden:
    case WorkKind::kFillWindow:
    case WorkKind::kUnstage: return work.count * kConvert;

    case WorkKind::kStage: return work.count * sizeof(float) + work.staged.payload.size();
    case WorkKind::kHash: return work.count;
    case WorkKind::kVerify: return work.staged.payload.size();
    case WorkKind::kMoveOut: return 2 * work.staged.payload.size();
    case WorkKind::kAccumulate: return work.count * kAdd;
    case WorkKind::kScan: break;
  }

  uint64_t elements = 0;
  for (const ParameterRun& run : work.runs) elements += run.count;
  return std::max<uint64_t>(1, elements * kScan);
}

}  // namespace tidepool::memserver
