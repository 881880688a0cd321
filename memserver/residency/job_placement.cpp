#include "memserver/residency/job_placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/formats/plane_slack.h"
#include "base/planted.h"
#include "base/units.h"
#include "memserver/residency/pool/extent_runs.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {
namespace {

bool IsOnNvme(uint64_t offset) {
  return offset > kSpilledExtent - kNvmeDirectoriesMax;
}

// True for a listed offset of a plane that is not in the pool.
bool IsElsewhere(uint64_t offset) {
  return IsOnNvme(offset) || offset == kGpuExtent;
}

}  // namespace

JobPlacement::JobPlacement(const shm::JobSpec* spec, HostPool* pool, Placement placement)
    : spec_(spec),
      pool_(pool),
      placement_(std::move(placement)),
      records_bytes_(shm::StateBytesOf(*spec).records) {}

JobPlacement::~JobPlacement() {
  pool_->Release(runs_);
  if (TP_PLANTED("residency.released_twice")) pool_->Release(runs_);
}

// Whole pages of the records and of each staging buffer.
std::vector<uint64_t> JobPlacement::HeadSizes() const {
  std::vector<uint64_t> sizes{records_bytes_};
  if (shm::StagingBytes(*spec_, 1) == 0) return sizes;
  for (const uint64_t largest : shm::LargestShards(*spec_)) {
    if (largest > 0) sizes.push_back(RoundUp(shm::StagingBytes(*spec_, largest), kPageBytes));
  }
  return sizes;
}

// Whole pages of each plane in the pool; 0 for one that is elsewhere, or that the job lacks.
std::array<uint64_t, kPlanesMax> JobPlacement::PlaneSizes(ChunkId id) const {
  shm::PlaneBytes left = shm::HostPlaneBytesOf(*spec_, id, placement_.IsSpilled(id));
  left.param16 = WeightBytesListed(id, left.param16);
  auto sizes = InOrder(left);
  for (uint64_t& bytes : sizes) bytes = RoundUp(bytes, kPageBytes);
  return sizes;
}

// In the order of extents(); 0 for a plane that is elsewhere.
std::vector<uint64_t> JobPlacement::ExtentSizes() const {
  std::vector<uint64_t> sizes = HeadSizes();
  for (ChunkId id = 0; id < spec_->chunks.size(); ++id) {
    const auto all = InOrder(shm::PlaneBytesOf(*spec_, id)), host = PlaneSizes(id);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] > 0) sizes.push_back(host[i]);
    }
  }
  return sizes;
}

// The planes that spilled weights land in are taken as one, so that they are adjacent.
template <typename Visit>
void JobPlacement::ForTakings(ChunkId id, Visit visit) const {
  constexpr size_t kParam16 = kPlanesMax - 2, kGradient = kPlanesMax - 1;
  const auto all = InOrder(shm::PlaneBytesOf(*spec_, id)), sizes = PlaneSizes(id);
  const bool on_gpu = shm::IsOnGpu(*spec_, id), spilled = placement_.IsSpilled(id);
  const bool off_host = (spilled && !placement_.IsWindowed(id)) || on_gpu;
  const auto left = InOrder(shm::HostPlaneBytesOf(*spec_, id, true));
  const bool joins = off_host && spec_->DTypeOf(id) != DType::kF32 && !spec_->HasF32Slots() &&
                     !IsSplit(spec_->optimizer.states);

  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == 0) continue;
    if (sizes[i] == 0) {
      visit(Taking{.elsewhere = on_gpu ? kGpuExtent : kSpilledExtent - placement_.DirectoryOf(id)});
      continue;
    }
    const bool joined = joins && i == kParam16;
    // The remaining planes of an off-host chunk are not traversed in one loop, so they need no
    // spacing.
    visit(Taking{.bytes = sizes[i],
                 .behind = joined ? sizes[kGradient] : 0,
                 .slack = spilled || on_gpu ? 0 : SlackOf(sizes[i]),
                 .movable = !spilled && !on_gpu && left[i] == 0});
    i += joined ? 1 : 0;
  }
}

// Bytes of movable planes of the chunks from this one on, by kind.
uint64_t JobPlacement::MovableFrom(uint64_t chunk) const {
  return shm::MovablePlanesFrom(*spec_, chunk, placement_.first_spilled);
}
uint64_t JobPlacement::StayingFrom(uint64_t chunk) const {
  return shm::HostPlanesFrom(*spec_, chunk, placement_.first_spilled, placement_.weights) -
         MovableFrom(chunk);
}

// Parts: first the fixed planes of each chunk, then the movable planes of each.
RunWants JobPlacement::Wants() const {
  RunWants wants;
  const uint64_t chunks = spec_->chunks.size();
  wants.singles = HeadSizes();
  wants.parts = 2 * chunks;
  wants.bytes_from = [this, chunks](uint64_t part) {
    return part < chunks ? StayingFrom(part) + MovableFrom(0) : MovableFrom(part - chunks);
  };

  wants.split = [this, chunks](uint64_t part, std::vector<uint64_t>* pieces) {
    ForTakings(static_cast<ChunkId>(part % chunks), [&](const Taking& each) {
      if (each.bytes > 0 && each.movable == (part >= chunks)) pieces->push_back(each.all());
    });
  };
  return wants;
}

bool JobPlacement::TakeNew() {
  const RunWants wants = Wants();
  if (!pool_->TakeRuns(wants, &runs_)) return false;
  for (const Extent& run : runs_) pool_bytes_ += run.bytes;
  TP_CHECK(pool_bytes_ == BytesToTake(), "admission counts exactly what a job takes");

  head_ = wants.singles.size();
  first_movable_ = DivideRuns(&runs_, head_, StayingFrom(0));
  stays_.run = head_;
  moves_.run = first_movable_;
  extents_.reserve(shm::ExtentCount(*spec_));
  extents_.assign(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(head_));
  LayOutStaging();
  return true;
}

// The next bytes of the runs, which end where pieces do.
Extent JobPlacement::Carve(uint64_t bytes, Place* place) {
  if (place->carved == runs_[place->run].bytes) {
    ++place->run;
    place->carved = 0;
  }
  const Extent& run = runs_[place->run];
  TP_CHECK(bytes <= run.bytes - place->carved, "what was taken as one lies in one run");
  const Extent carved{run.data + place->carved, bytes, run.offset + place->carved};
  place->carved += bytes;
  return carved;
}

void JobPlacement::PlaceNext() {
  spacing_.NextChunk();
  ForTakings(placed_++, [this](const Taking& each) {
    if (each.bytes == 0) {
      extents_.push_back({nullptr, 0, each.elsewhere});
      return;
    }
    const Extent run = Carve(each.all(), each.movable ? &moves_ : &stays_);
    if (each.slack > 0) {
      extents_.push_back(spacing_.Place(run, each.slack, !each.movable));
      return;
    }

    extents_.push_back({run.data, each.bytes, run.offset});
    if (each.behind > 0)
      extents_.push_back({run.data + each.bytes, each.behind, run.offset + each.bytes});
  });
}

bool JobPlacement::TakeKept(const KeptJob& kept) {
  const std::span<const uint64_t> offsets(kept.extent_offsets);
  records_bytes_ = kept.records_bytes;
  if (!ReadPlacement(offsets)) return false;
  const std::vector<uint64_t> sizes = ExtentSizes();
  if (sizes.size() != offsets.size()) return false;

  for (size_t i = 0; i < sizes.size(); ++i) {
    if ((sizes[i] == 0) != IsElsewhere(offsets[i])) return false;
    if (sizes[i] == 0) {
      extents_.push_back({nullptr, 0, offsets[i]});
    } else if (pool_->TakeAt(offsets[i], sizes[i], &extents_)) {
      pool_->Join(extents_.back(), &runs_);
    } else {
      return false;
    }
  }

  head_ = sizes.size() - PlanesListed(*spec_);
  placed_ = static_cast<ChunkId>(spec_->chunks.size());
  SortRuns();
  NoteDemoted(kept.demoted);
  CountKept();
  LayOutStaging();
  return true;
}

// An earlier server may have laid the planes out in any order.
void JobPlacement::SortRuns() {
  std::vector<bool> moves(extents_.size(), false);
  for (ChunkId id = spec_->states_on_gpu; id < chunks_on_host(); ++id)
    ForEachMovable(id, [&moves](size_t at) { moves[at] = true; });
  std::vector<Extent> staying, movable;
  for (size_t i = 0; i < extents_.size(); ++i) {
    if (extents_[i].bytes > 0) pool_->Join(extents_[i], moves[i] ? &movable : &staying);
  }
  first_movable_ = staying.size();
  runs_ = std::move(staying);
  runs_.insert(runs_.end(), movable.begin(), movable.end());
}

bool JobPlacement::FindsRuns(std::span<const Extent> released) const {
  return pool_->FindsRuns(Wants(), released);
}

// The placeholder offsets of missing planes say which chunks are spilled, and where to.
bool JobPlacement::ReadPlacement(std::span<const uint64_t> offsets) {
  if (offsets.size() != ExtentSizes().size()) return false;
  std::span<const uint64_t> rest = offsets.last(PlanesListed(*spec_));
  std::vector<uint64_t> weights;
  size_t planes = 0;
  for (ChunkId id = 0; id < spec_->chunks.size(); ++id, rest = rest.subspan(planes)) {
    planes = PlanesBefore(*spec_, id + 1) - PlanesBefore(*spec_, id);
    if (spec_->DTypeOf(id) != DType::kF32) weights.push_back(rest[planes - 2]);
    const auto end = rest.begin() + static_cast<std::ptrdiff_t>(planes);
    const auto gone = std::find_if(rest.begin(), end, IsElsewhere);
    const bool is_gone = gone != end;

    if (shm::IsOnGpu(*spec_, id) != (is_gone && *gone == kGpuExtent)) return false;
    if (shm::IsOnGpu(*spec_, id)) continue;
    if (!is_gone) {
      if (placement_.spills()) return false;
      continue;
    }

    if (!shm::MaySpill(*spec_)) return false;
    if (!placement_.spills()) placement_.first_spilled = id;
    const auto directory = static_cast<uint8_t>(kSpilledExtent - *gone);
    placement_.directories.push_back(directory);
    placement_.nvme_bytes.resize(
        std::max<size_t>(placement_.nvme_bytes.size(), directory + size_t{1}));
    placement_.nvme_bytes[directory] += shm::SpilledChunkBytes(*spec_, id);
  }
  return ReadWeightPlacement(weights);
}

// `offsets`: those of the 16-bit planes, from the first chunk that has one on. Areas are told apart
// from planes by the chunks between them, of which there is at least one.
bool JobPlacement::ReadWeightPlacement(std::span<const uint64_t> offsets) {
  const auto first = std::find_if(offsets.begin(), offsets.end(), IsOnNvme);
  if (first == offsets.end()) return true;
  const auto area = std::find_if_not(first, offsets.end(), IsOnNvme);
  const auto areas = static_cast<uint64_t>(offsets.end() - area);
  if (areas == 0 || areas > shm::kWeightAreasMax || std::any_of(area, offsets.end(), IsOnNvme))
    return false;
  const auto chunk = static_cast<ChunkId>(first - offsets.begin()) + spec_->f32_chunks;
  placement_.weights = {.first = chunk, .areas = static_cast<uint32_t>(areas)};
  return placement_.spills() && chunk >= placement_.first_spilled &&
         spec_->chunks.size() - chunk > 2 * areas;
}

// The last chunks have areas of the window in place of their 16-bit planes; the chunks between have
// none.
uint64_t JobPlacement::WeightBytesListed(ChunkId id, uint64_t plane_bytes) const {
  const shm::WeightSpill& weights = placement_.weights;
  if (!placement_.IsWindowed(id)) return plane_bytes;
  return id + weights.areas < spec_->chunks.size() ? 0
                                                   : shm::WeightAreaBytes(*spec_, weights.first);
}

// A job found in kept memory has no empty pages beside its planes, and a job of an earlier layout
// has fewer records.
void JobPlacement::CountKept() {
  uint64_t not_taken = shm::StateBytesOf(*spec_).records - records_bytes_;
  for (ChunkId id = 0; id < spec_->chunks.size(); ++id)
    ForTakings(id, [&not_taken](const Taking& each) { not_taken += each.slack; });
  for (const Extent& run : runs_) pool_bytes_ += run.bytes;
  TP_CHECK(pool_bytes_ + not_taken == BytesToTake(), "admission counts exactly what a job takes");
}

void JobPlacement::LayOutStaging() {
  size_t next = 1;
  staging_.assign(spec_->world, nullptr);
  if (shm::StagingBytes(*spec_, 1) > 0) {
    const std::vector<uint64_t> largest = shm::LargestShards(*spec_);
    for (Rank rank = 0; rank < spec_->world; ++rank) {
      if (largest[rank] > 0) staging_[rank] = extents_[next++].data;
    }
  }
  TP_CHECK(next == head_, "each extent has one use");
}

size_t JobPlacement::FirstExtentOf(ChunkId id) const {
  TP_CHECK(id < placed_, "the planes of the chunk have their places");
  return head_ + PlanesBefore(*spec_, id);
}

ChunkPlanes JobPlacement::PlanesOf(ChunkId id) const {
  ChunkPlanes planes;
  size_t next = FirstExtentOf(id);
  const auto places = planes.InOrder();
  const auto bytes = InOrder(shm::PlaneBytesOf(*spec_, id));
  for (size_t i = 0; i < places.size(); ++i) {
    if (bytes[i] > 0) *places[i] = extents_[next++].data;
  }
  return planes;
}

SpillPlace JobPlacement::SpillOf(ChunkId id) const {
  if (!IsSpilled(id)) return {};
  return {placement_.DirectoryOf(id), 0, shm::SlotBytes(*spec_, id)};
}

uint64_t JobPlacement::movable_bytes() const {
  if (leaving_bytes_ > 0) return leaving_bytes_;
  return spec_->states_on_gpu > 0 ? 0 : MovableBytes(*spec_, chunks_on_host());
}

// Calls `visit` with the index of each extent that leaves the host with the chunk.
template <typename Visit>
void JobPlacement::ForEachMovable(ChunkId id, Visit visit) const {
  const auto all = InOrder(shm::PlaneBytesOf(*spec_, id)),
             left = InOrder(shm::HostPlaneBytesOf(*spec_, id, true));
  size_t at = FirstExtentOf(id);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] > 0 && left[i] == 0) visit(at);
    at += all[i] > 0 ? 1 : 0;
  }
}

void JobPlacement::AddMovable(std::vector<Extent>* extents) const {
  extents->insert(extents->end(), runs_.begin() + static_cast<std::ptrdiff_t>(first_movable_),
                  runs_.end());
  extents->insert(extents->end(), spacing_.empty_pages().begin(), spacing_.empty_pages().end());
}

// The placement includes them already.
void JobPlacement::NoteDemoted(ChunkId demoted) {
  demoted_ = demoted;
  demoted_bytes_.assign(placement_.nvme_bytes.size(), 0);
  for (ChunkId id = 0; id < demoted; ++id)
    demoted_bytes_[placement_.DirectoryOf(id)] += shm::SpilledChunkBytes(*spec_, id);
}

void JobPlacement::BeginMove(const MovePlan& plan) {
  const ChunkId count = chunks_on_host();
  TP_CHECK(count > 0 && demoted_ == 0 && plan.directories.size() == count,
           "a job moves once, with all that is on the host");
  leaving_bytes_ = movable_bytes();
  held_bytes_ = 0;
  placement_.nvme_bytes.resize(std::max(placement_.nvme_bytes.size(), plan.nvme_bytes.size()));
  for (size_t d = 0; d < plan.nvme_bytes.size(); ++d)
    placement_.nvme_bytes[d] += plan.nvme_bytes[d];

  placement_.directories.insert(placement_.directories.begin(), plan.directories.begin(),
                                plan.directories.end());
  placement_.first_spilled = 0;
  demoted_ = count;
  demoted_bytes_ = plan.nvme_bytes;
  demoted_bytes_.resize(placement_.nvme_bytes.size());
}

void JobPlacement::MoveNext(ChunkId id) {
  ForEachMovable(id, [&](size_t at) {
    extents_[at] = {nullptr, 0, kSpilledExtent - placement_.DirectoryOf(id)};
  });
}

void JobPlacement::EndMove() {
  std::vector<Extent> gone;
  AddMovable(&gone);
  pool_->Release(gone);
  runs_.resize(first_movable_);
  runs_ = RunsWithout(runs_, spacing_.empty_pages());
  first_movable_ = runs_.size();
  spacing_.Forget();

  leaving_bytes_ = 0;
  pool_bytes_ = std::accumulate(runs_.begin(), runs_.end(), uint64_t{0},
                                [](uint64_t sum, const Extent& run) { return sum + run.bytes; });
  TP_CHECK(pool_bytes_ == BytesToTake(), "admission counts exactly what a job takes");
}

}  // namespace tidepool::memserver
