#include "memserver/update/gpu_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"
#include "optim/adam_stream.h"
#include "optim/undo_tile.h"
#include "shm/messages.h"

namespace tidepool::memserver {

GpuQueue::GpuQueue(JobStates* states, JobId job)
    : states_(states),
      job_(job),
      places_(states->spec()),
      shares_(states->uses_gpus() ? states->spec().world : 0),
      finished_(states->spec().states_on_gpu) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    // A chunk has one task at a time, and a share has every world-th chunk.
    lanes_.push_back(
        {.tasks = FixedRing<Task>(DivideUp(states->spec().states_on_gpu, states->spec().world)),
         .next = 0,
         .units = FixedRing<Unit>(shm::kGpuUnitsInFlight),
         .place = 0,
         .to_narrow = {},
         .at_worker = false});
  }
}

void GpuQueue::Store(ChunkId id) {
  const Chunk& chunk = states_->chunk(id);
  bool stored = true;  // as noted by the former server
  for (uint32_t piece = 0; piece < chunk.pieces; ++piece)
    stored &= ProgressOf(chunk, piece)->Load().state == optim::Progress::State::kFinished;
  if (!stored) return LaneOf(id).tasks.Push({Kind::kStore, id, states_->epoch()});
  if (chunk.planes.param16 != nullptr)
    return LaneOf(id).tasks.Push({Kind::kNarrow, id, states_->epoch()});
  finished_.Push({id, false});
}

void GpuQueue::Update(ChunkId id, uint64_t epoch) {
  LaneOf(id).tasks.Push({Kind::kUpdate, id, epoch});
}

uint64_t GpuQueue::NarrowElements(const Chunk& chunk) const {
  const uint64_t room = chunk.elements * BytesOf(chunk.gradient_type) / sizeof(float);
  return std::min(room, shm::kGpuUnitElements);
}

GpuQueue::Begun GpuQueue::BeginNext(bool may_update, const UpdateFactors& factors) {
  if (over_) return {};
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Rank rank = next_;
    next_ = (next_ + 1) % static_cast<Rank>(shares_.size());
    Lane& lane = lanes_[rank];
    if (!shares_[rank].ready() || lane.tasks.empty() || lane.units.size() == shm::kGpuUnitsInFlight)
      continue;

    const Task task = lane.tasks.Front();
    const Chunk& chunk = states_->chunk(task.chunk);
    const bool first = task.kind == Kind::kUpdate && lane.next == 0;
    if (first && (!may_update || chunk.readers > 0)) continue;
    if (task.kind == Kind::kNarrow && (!lane.units.empty() || lane.to_narrow || lane.at_worker))
      continue;
    Begun begun{.bytes = BeginUnit(rank, factors)};
    if (first) begun.update = task.chunk;
    return begun;
  }
  return {};
}

// Begins the next unit of the front task.
uint64_t GpuQueue::BeginUnit(Rank rank, const UpdateFactors& factors) {
  Lane& lane = lanes_[rank];
  Unit unit{.task = lane.tasks.Front(), .begin = lane.next};
  const Chunk& chunk = states_->chunk(unit.task.chunk);
  const uint64_t most =
      unit.task.kind == Kind::kNarrow ? NarrowElements(chunk) : shm::kGpuUnitElements;
  unit.count = std::min(chunk.elements - unit.begin, most);
  if (unit.task.kind == Kind::kUpdate)
    unit.count = std::min(unit.count, ElementsOfRuns(chunk, unit.begin));
  unit.place = std::exchange(lane.place, (lane.place + 1) % shm::kGpuUnitsInFlight);
  unit.begin_ns = spans_ != nullptr ? spans_->NowNs() : 0;

  const uint64_t bytes = Begin(rank, unit, factors);
  unit.marker = StreamOf(rank, unit)->Record();
  lane.units.Push(unit);
  ++units_;
  lane.next += unit.count;
  if (lane.next == chunk.elements) {
    lane.tasks.Pop();
    lane.next = 0;
  }
  TP_POINT("server.gpu_unit_begun");
  return bytes;
}

// The runs from the first one that reaches behind `element`; they are in ascending order.
std::span<const ParameterRun> GpuQueue::RunsFrom(const Chunk& chunk, uint64_t element) const {
  const std::span<const ParameterRun> runs = states_->runs(chunk);
  const auto first = std::partition_point(runs.begin(), runs.end(), [=](const ParameterRun& run) {
    return run.begin + run.count <= element;
  });
  return runs.subspan(static_cast<size_t>(first - runs.begin()));
}

// Number of elements from `begin` to the end of the last run that a unit may have: each run costs a
// launch and a copy in one turn of the loop.
uint64_t GpuQueue::ElementsOfRuns(const Chunk& chunk, uint64_t begin) const {
  const std::span<const ParameterRun> runs = RunsFrom(chunk, begin);
  return (runs.size() > kGpuRunsAUnit ? runs[kGpuRunsAUnit].begin : chunk.elements) - begin;
}

// Begins a unit. Returns the bytes that cross the host link.
uint64_t GpuQueue::Begin(Rank rank, const Unit& unit, const UpdateFactors& factors) {
  const Chunk& chunk = states_->chunk(unit.task.chunk);
  device::Stream* const stream = StreamOf(rank, unit);
  const uint64_t bytes = unit.count * sizeof(float);
  std::byte* const master = shares_[rank].memory->data() +
                            places_.SlotAt(unit.task.chunk, unit.task.epoch) +
                            unit.begin * sizeof(float);

  switch (unit.task.kind) {
    case Kind::kStore:
      stream->Copy(master, states_->weights().PutBytes(unit.task.chunk, unit.begin), bytes);
      return bytes + StoreMoments(unit, master, stream);
    case Kind::kNarrow: stream->Copy(chunk.planes.gradient, master, bytes); return bytes;
    case Kind::kUpdate: break;
  }
  BeginUpdate(rank, unit, factors);
  return unit.count * (BytesOf(chunk.gradient_type) + BytesOf(chunk.dtype));
}

// Copies the moments put with the weights to their planes, which follow `master` in the slot.
// Returns the number of bytes.
uint64_t GpuQueue::StoreMoments(const Unit& unit, std::byte* master, device::Stream* stream) const {
  const shm::GpuSlot slot = shm::GpuSlotOf(states_->spec(), unit.task.chunk);
  const MomentLanding::Words words = states_->weights().landing().From(unit.task.chunk, unit.begin);
  const uint64_t bytes = unit.count * sizeof(float);
  uint64_t copied = 0;

  for (const uint32_t plane : {shm::kPutMomentum, shm::kPutVariance}) {
    if (words[plane - 1] == nullptr) continue;
    std::byte* const to = master + (shm::IsOfMomentum(plane) ? slot.momentum : slot.variance);
    stream->Copy(to, words[plane - 1], bytes);
    copied += bytes;
  }
  return copied;
}

// Copies the values of this epoch, which lies `from` elements away, to the next; the host has them.
void GpuQueue::KeepValues(device::Stream* stream, const optim::UpdateSpan& span, int64_t from) {
  for (void* const plane : {span.master, span.momentum, span.variance}) {
    auto* const to = static_cast<float*>(plane);
    stream->Copy(to, to + from, span.count * sizeof(float));
  }
}

void GpuQueue::BeginUpdate(Rank rank, const Unit& unit, const UpdateFactors& factors) {
  const shm::JobSpec& spec = states_->spec();
  const Chunk& chunk = states_->chunk(unit.task.chunk);
  const shm::GpuSlot slot = shm::GpuSlotOf(spec, unit.task.chunk);
  const shm::GpuStaging staging = shm::GpuStagingOf(spec, rank);
  device::Stream* const stream = StreamOf(rank, unit);
  std::byte* const memory = shares_[rank].memory->data();
  const uint64_t to_at = places_.SlotAt(unit.task.chunk, unit.task.epoch + 1),
                 from_at = places_.SlotAt(unit.task.chunk, unit.task.epoch);

  std::byte* const to = memory + to_at + unit.begin * sizeof(float);
  const int64_t from = (static_cast<int64_t>(from_at) - static_cast<int64_t>(to_at)) /
                       static_cast<int64_t>(sizeof(float));
  std::byte* const gradients =
      memory + places_.StagingAt(rank, TP_PLANTED("update.gpu_place_shared") ? 0 : unit.place);
  std::byte* const copies = gradients + staging.copies;
  const uint64_t gradient_bytes = BytesOf(chunk.gradient_type);
  stream->Copy(gradients, states_->table().GradientBytes(chunk, unit.begin),
               unit.count * gradient_bytes);
  const bool narrows = chunk.planes.param16 != nullptr;
  const uint64_t end = unit.begin + unit.count;
  // Gaps between parameters are unused and not copied.
  for (const ParameterRun& run : RunsFrom(chunk, unit.begin)) {
    if (run.begin >= end) break;
    const uint64_t first = std::max(run.begin, unit.begin),
                   last = std::min(run.begin + run.count, end);
    const uint64_t at = first - unit.begin, count = last - first;
    const optim::StepFactors* const own =
        factors.OfChunk(chunk.first_parameter)
            .Of(static_cast<uint64_t>(&run - states_->runs(chunk).data()), run.group);

    optim::UpdateSpan span;
    span.master = to + at * sizeof(float);
    span.momentum = to + slot.momentum + at * sizeof(float);
    span.variance = to + slot.variance + at * sizeof(float);
    span.gradient = gradients + at * gradient_bytes;
    span.gradient_dtype = chunk.gradient_type;
    span.count = count;

    if (own == nullptr) {
      KeepValues(stream, span, from);
      continue;
    }
    if (narrows) {
      span.param16 = copies + at * BytesOf(chunk.dtype);
      span.param16_dtype = chunk.dtype;
    }

    (void)optim::EnqueueAdam(stream, *own, span, from);  // the stream keeps the error
    const uint64_t fetched_bytes = BytesOf(chunk.dtype);
    std::byte* const fetched = narrows ? chunk.planes.param16 : chunk.planes.master;
    stream->Copy(fetched + first * fetched_bytes, narrows ? span.param16 : span.master,
                 count * fetched_bytes);
  }
}

bool GpuQueue::Progress(uint64_t bytes_max) {
  bool worked = false;
  for (Rank rank = 0; rank < shares_.size(); ++rank) {
    Lane& lane = lanes_[rank];
    const GpuShare& share = shares_[rank];
    if (lane.units.empty() || !share.has_streams()) continue;
    for (const auto& stream : share.streams) worked |= stream->Progress(bytes_max);
    worked |= EndUnits(&lane, share);

    if (failure_.ok() && share.failed()) {
      const Status why = share.status();
      Fail(Status(ErrorId::kStatesLost, "the states of job " + states_->spec().name + " on " +
                                            shares_[rank].gpu->gpu().device().name() +
                                            " are lost: the GPU failed")
               .Why(why.what()));
      worked = true;
    }
  }
  return worked;
}

bool GpuQueue::EndUnits(Lane* lane, const GpuShare& share) {
  bool ended = false;
  while (!lane->units.empty() &&
         share.streams[lane->units.Front().place]->Passed(lane->units.Front().marker)) {
    const Unit unit = lane->units.Front();
    lane->units.Pop();
    ended = true;
    NoteSpan(unit);
    if (!over_) EndUnit(lane, unit);
  }
  return ended;
}

// From the unit's way to its stream until the loop saw that it has passed.
void GpuQueue::NoteSpan(const Unit& unit) const {
  if (spans_ == nullptr || unit.begin_ns == 0) return;
  spans_->Add({.kind = unit.task.kind == Kind::kUpdate ? SpanKind::kGpuUpdate : SpanKind::kGpuStore,
               .by = shm::GpuShareOf(states_->spec(), unit.task.chunk),
               .chunk = unit.task.chunk,
               .piece = static_cast<uint32_t>(unit.begin / shm::kPieceElements),
               .begin_ns = unit.begin_ns,
               .end_ns = spans_->NowNs()});
}

void GpuQueue::EndUnit(Lane* lane, const Unit& unit) {
  const Chunk& chunk = states_->chunk(unit.task.chunk);
  const bool last = unit.begin + unit.count == chunk.elements;
  TP_POINT("server.gpu_unit_passed");
  if (unit.task.kind == Kind::kNarrow) lane->to_narrow = unit;
  if (unit.task.kind == Kind::kUpdate && last) finished_.Push({unit.task.chunk, true});
  if (unit.task.kind != Kind::kStore || !last) return;
  NoteStored(chunk);
  if (chunk.planes.param16 == nullptr) return finished_.Push({unit.task.chunk, false});
  lane->tasks.Push({Kind::kNarrow, unit.task.chunk, unit.task.epoch});
}

void GpuQueue::NoteStored(const Chunk& chunk) const {
  for (uint32_t piece = 0; piece < chunk.pieces; ++piece) {
    ProgressOf(chunk, piece)->Store({0, 0, optim::Progress::State::kFinished});
    TP_POINT("server.gpu_piece_stored");
  }
}

TP_HOT bool GpuQueue::NextLoadWork(Work* work) {
  for (Rank rank = 0; rank < lanes_.size() && !over_; ++rank) {
    Lane& lane = lanes_[rank];
    if (!lane.to_narrow || lane.at_worker) continue;
    const Unit& unit = *lane.to_narrow;
    const Chunk& chunk = states_->chunk(unit.task.chunk);
    lane.at_worker = true;

    *work = Work{};
    work->name = {WorkKind::kNarrowStored, job_, 0, unit.task.chunk, rank};
    work->to = chunk.planes.param16 + unit.begin * BytesOf(chunk.dtype);
    work->from = chunk.planes.gradient;
    work->dtype = chunk.dtype;
    work->count = unit.count;
    return true;
  }
  return false;
}

void GpuQueue::EndWork(const WorkDone& done) {
  Lane& lane = LaneOf(done.name.chunk);
  TP_CHECK(lane.at_worker && lane.to_narrow, "work on a stored chunk ends once");
  const Unit unit = *std::exchange(lane.to_narrow, std::nullopt);
  lane.at_worker = false;
  if (over_) return;
  if (unit.begin + unit.count == states_->chunk(unit.task.chunk).elements)
    finished_.Push({unit.task.chunk, false});
}

bool GpuQueue::TakeFinished(Finished* finished) {
  if (over_ || finished_.empty()) return false;
  *finished = finished_.Front();
  finished_.Pop();
  return true;
}

void GpuQueue::Fail(const Status& why) {
  if (failure_.ok()) failure_ = why;
  Abandon();
}

bool GpuQueue::moving() const {
  for (Rank rank = 0; rank < shares_.size(); ++rank) {
    const GpuShare& share = shares_[rank];
    const FixedRing<Unit>& units = lanes_[rank].units;
    if (units.empty() || !share.has_streams()) continue;
    if (failure_.ok()) return true;
    // A unit behind one that will never end may still be in progress.
    for (uint32_t i = 0; i < units.size(); ++i) {
      device::Stream* const stream = StreamOf(rank, units.at(i));
      if (!stream->Passed(units.at(i).marker) && stream->status().ok()) return true;
    }
  }
  return false;
}

void GpuQueue::Abandon() {
  over_ = true;
  for (Lane& lane : lanes_) lane.tasks.Clear();
}

}  // namespace tidepool::memserver
