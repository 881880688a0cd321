#include "memserver/update/worker.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/formats/content_hash.h"
#include "base/formats/moment_words.h"
#include "base/planted.h"
#include "optim/update_rule.h"
#include "shm/messages.h"

namespace tidepool::memserver {

WorkDone Worker::Do(const Work& work) {
  WorkDone done{.name = work.name, .bytes = BytesTouched(work)};
  switch (work.name.kind) {
    case WorkKind::kNarrow:
    case WorkKind::kNarrowStored:
      kernels_.narrow(work.to, work.dtype, static_cast<const float*>(work.from), work.count);
      break;
    case WorkKind::kWiden:
      kernels_.widen(static_cast<float*>(work.to), work.from, work.dtype, work.count);
      break;

    case WorkKind::kAccumulate:
      update_.Add({work.identity, work.version, static_cast<float*>(work.to), work.from, work.dtype,
                   work.count, work.progress});
      break;
    case WorkKind::kScan: done.finite = Scan(work); break;
    case WorkKind::kUpdate:
      if (work.staged.header == nullptr) {
        Update(work);
      } else {
        done.intact = UpdateStaged(work);
      }
      break;

    case WorkKind::kStage: Stage(work); break;
    case WorkKind::kUnstage: done.intact = Unstage(work); break;
    case WorkKind::kFillWindow: done.intact = FillWindow(work); break;
    case WorkKind::kHash:
      static_cast<ContentHasher*>(work.to)->Update(
          {static_cast<const std::byte*>(work.from), work.count});
      break;
    case WorkKind::kVerify: done.intact = IsIntact(work.staged); break;
    case WorkKind::kMoveOut: MoveOut(work); break;
  }
  return done;
}

// Sums each parameter from its own start, so that the sums do not depend on the layout of chunks.
bool Worker::Scan(const Work& work) const {
  const auto* gradient = static_cast<const std::byte*>(work.from);
  bool finite = true;
  for (size_t i = 0; i < work.runs.size(); ++i) {
    const ParameterRun& run = work.runs[i];
    const optim::ScanResult result =
        kernels_.scan_gradient(gradient + run.begin * BytesOf(work.dtype), work.dtype, run.count);
    work.norm_sums[i] = result.sum_squares;
    finite = finite && result.finite;
  }
  return finite;
}

// Checks, updates and seals the piece while it is in the caches.
bool Worker::UpdateStaged(const Work& work) {
  if (!IsIntact(work.staged)) return false;
  if (work.planes.param16 == nullptr && work.planes.gradient_dtype != DType::kF32) {
    Work kept_by_nobody = work;  // the loops over 16-bit gradients always make 16-bit weights
    kept_by_nobody.planes.param16 = unkept_.get();
    Update(kept_by_nobody);
  } else {
    Update(work);
  }

  const bool split = IsSplit(work.planes.states);
  if (work.planes.param16 != nullptr && !split && !TP_PLANTED("update.gaps_left_in_slot"))
    NarrowGaps(work.planes);

  const void* const fetched = split ? work.planes.param16 : work.planes.master;
  if (work.copy != nullptr)
    std::memcpy(work.copy, fetched, work.planes.count * (split ? sizeof(uint16_t) : sizeof(float)));
  Seal(work.staged);
  return true;
}

// Narrows the gaps between the parameters of the piece that was updated last: a window slot has the
// bytes of another chunk there.
void Worker::NarrowGaps(const optim::UpdateSpan& planes) const {
  uint64_t begin = 0;
  const auto narrow_to = [&](uint64_t end) {
    if (begin >= end) return;
    auto* const to =
        static_cast<std::byte*>(planes.param16) + begin * BytesOf(planes.param16_dtype);
    kernels_.narrow(to, planes.param16_dtype, static_cast<const float*>(planes.master) + begin,
                    end - begin);
  };

  for (const optim::GroupRun& run : runs_) {
    narrow_to(run.begin);
    begin = run.end;
  }
  narrow_to(planes.count);
}

void Worker::Stage(const Work& work) {
  const uint64_t bytes = MasterBytes(work.planes.states, work.count);
  std::memcpy(work.planes.master, work.from, bytes);
  std::memset(work.staged.payload.data() + bytes, 0, work.staged.payload.size() - bytes);
  if (work.copy != nullptr)
    std::memcpy(work.planes.param16, work.copy, work.count * sizeof(uint16_t));

  const auto keep = [&work](uint32_t plane, void* moment, float* scales) {
    const uint32_t* const words = work.moments[plane - 1];
    if (words == nullptr || moment == nullptr) return;
    if (shm::IsScales(plane))
      return KeepScales({words, work.count}, 0, reinterpret_cast<std::byte*>(scales));
    KeepMoment(work.planes.states, {words, work.count}, 0, static_cast<std::byte*>(moment));
  };

  keep(shm::kPutMomentum, work.planes.momentum, nullptr);
  keep(shm::kPutVariance, work.planes.variance, nullptr);
  keep(shm::kPutMomentumScales, work.planes.momentum, work.planes.momentum_scales);
  keep(shm::kPutVarianceScales, work.planes.variance, work.planes.variance_scales);
  Seal(work.staged);
}

// Leaves the piece in staging as an update would.
void Worker::MoveOut(const Work& work) {
  const optim::UpdateSpan &to = work.planes, &from = work.source;
  std::memset(work.staged.payload.data(), 0, work.staged.payload.size());
  const auto copy = [](void* into, const void* bytes_of, uint64_t bytes) {
    if (into != nullptr) std::memcpy(into, bytes_of, bytes);
  };

  const bool scaled = to.states == StateForm::kSplit8;
  const uint64_t moment = scaled ? to.count : MomentBytes(to.states, to.count);
  const uint64_t scales = DivideUp(to.count, kScaleBlockElements) * sizeof(float);

  copy(to.master, from.master, MasterBytes(to.states, to.count));
  copy(to.momentum, from.momentum, moment);
  copy(to.variance, from.variance, moment);
  if (scaled) {
    copy(to.momentum_scales, from.momentum_scales, scales);
    copy(to.variance_scales, from.variance_scales, scales);
  }
  if (IsSplit(to.states)) copy(to.param16, from.param16, to.count * sizeof(uint16_t));
  Seal(work.staged);
}

bool Worker::Unstage(const Work& work) const {
  if (!IsIntact(work.staged)) return false;
  kernels_.narrow(work.to, work.dtype, static_cast<const float*>(work.from), work.count);
  return true;
}

bool Worker::FillWindow(const Work& work) const {
  if (!IsIntact(work.staged)) return false;
  if (IsSplit(work.planes.states)) {
    std::memcpy(work.to, work.from, work.count * sizeof(uint16_t));
  } else {
    kernels_.narrow(work.to, work.dtype, static_cast<const float*>(work.from), work.count);
  }
  return true;
}

void Worker::Update(const Work& work) {
  const uint64_t end = work.begin + work.planes.count;
  runs_.clear();
  // The first parameter that reaches into the piece; parameters are in ascending order.
  auto run = std::partition_point(
      work.runs.begin(), work.runs.end(),
      [&work](const ParameterRun& r) { return r.begin + r.count <= work.begin; });
  for (; run != work.runs.end() && run->begin < end; ++run) {
    const uint64_t first = std::max(run->begin, work.begin);
    const uint64_t last = std::min(run->begin + run->count, end);
    const optim::StepFactors* const factors =
        work.factors.Of(static_cast<uint64_t>(run - work.runs.begin()), run->group);
    if (factors == nullptr) continue;  // elements outside all runs keep their values

    const optim::RandomPlace random{optim::RandomKey(run->rounding_seed, work.version),
                                    first - run->begin};
    runs_.push_back({first - work.begin, last - work.begin, *factors, random});
  }
  update_.Run({work.identity, work.version, work.planes, runs_, work.progress});
}

}  // namespace tidepool::memserver
