#include "memserver/update/work.h"

#include <algorithm>

#include "base/optimizer.h"
#include "base/planted.h"

namespace tidepool::memserver {

uint64_t PieceIdentity(const JobStates& states, const HostPool& pool, const void* progress) {
  return (TP_PLANTED("update.piece_named_by_place") ? 1 : states.record().nonce | 1) +
         2 * (pool.OffsetOf(progress) / sizeof(optim::ProgressWord));
}

namespace {

// Of an update: states are read and written, the gradient is read, a copy in 16 bits is written.
uint64_t BytesTouchedBy(const optim::UpdateSpan& span) {
  const uint64_t moments = (span.momentum == nullptr ? 0 : 1) + (span.variance == nullptr ? 0 : 1);
  const uint64_t copy = span.param16 == nullptr ? 0 : span.count * BytesOf(span.param16_dtype);
  return 2 * (MasterBytes(span.states, span.count) + moments * MomentBytes(span.states, span.count)) +
         (IsSplit(span.states) ? 2 : 1) * copy + span.count * BytesOf(span.gradient_dtype);
}

}  // namespace

uint64_t BytesTouched(const Work& work) {
  constexpr uint64_t kConvert = 6, kAdd = 12, kScan = 4;  // bytes an element
  switch (work.name.kind) {
    case WorkKind::kUpdate: return BytesTouchedBy(work.planes);
    case WorkKind::kNarrow:
    case WorkKind::kWiden:
    case WorkKind::kUnstage: return work.count * kConvert;
    case WorkKind::kStage: return work.count * sizeof(float) + work.staged.payload.size();
    case WorkKind::kAccumulate: return work.count * kAdd;
    case WorkKind::kScan: break;
  }
  uint64_t elements = 0;
  for (const ParameterRun& run : work.runs) elements += run.count;
  return std::max<uint64_t>(1, elements * kScan);
}

}  // namespace tidepool::memserver
