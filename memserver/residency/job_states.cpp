#include "memserver/residency/job_states.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/point.h"
#include "base/units.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

JobStates::JobStates(std::shared_ptr<const shm::JobSpec> spec, HostPool* pool, Placement placement)
    : spec_(std::move(spec)),
      placement_(spec_.get(), pool, std::move(placement)),
      records_(spec_.get()),
      table_(spec_.get(), &records_),
      weights_(spec_.get(), &placement_, &table_),
      fallback_slots_(spec_.get(), pool) {}

Result<std::unique_ptr<JobStates>> JobStates::Reserve(std::shared_ptr<const shm::JobSpec> spec,
                                                      HostPool* pool, const Placement& placement) {
  std::unique_ptr<JobStates> states(new JobStates(std::move(spec), pool, placement));
  if (!states->placement_.TakeNew()) {
    return Status(ErrorId::kPoolFull,
                  "job " + states->spec().name + " needs " +
                      FormatBytes(states->placement_.BytesToTake()) +
                      " of host memory; that much is free, but in runs of at most " +
                      FormatBytes(pool->largest_free_bytes()));
  }

  states->records_.LayOut(states->placement_.runs().front());
  return states;
}

Result<std::unique_ptr<JobStates>> JobStates::Create(std::shared_ptr<const shm::JobSpec> spec,
                                                     HostPool* pool, const Placement& placement) {
  TP_ASSIGN_OR_RETURN(std::unique_ptr<JobStates> states, Reserve(std::move(spec), pool, placement));
  states->LayOutMore(UINT32_MAX);
  return states;
}

bool JobStates::FindsRuns(const std::shared_ptr<const shm::JobSpec>& spec, HostPool* pool,
                          const Placement& placement, std::span<const Extent> released) {
  return JobPlacement(spec.get(), pool, placement).FindsRuns(released);
}

Result<std::unique_ptr<JobStates>> JobStates::Recover(const KeptJob& kept, HostPool* pool) {
  std::unique_ptr<JobStates> states(new JobStates(kept.spec, pool, {}));
  const Status misplaced(
      ErrorId::kKeptMemoryBad,
      "job " + std::to_string(kept.job) + " in kept memory names a place that it cannot have");
  if (!states->placement_.TakeKept(kept)) return misplaced;
  states->records_.LayOut(states->extents().front(), kept.layout);
  states->LayOutMore(UINT32_MAX);

  // Weights of demoted chunks no longer land anywhere.
  for (ChunkId id = kept.demoted; id < kept.spec->chunks.size(); ++id) {
    if (!states->LandsWhereItShould(id)) return misplaced;
  }
  TP_RETURN_IF_ERROR(states->table_.Recover(kept.sealed_version, &states->fallback_slots_));
  return states;
}

// Weights that land across two planes need the second one right behind the first.
bool JobStates::LandsWhereItShould(ChunkId id) const {
  const Chunk& chunk = table_.saved(id);
  if (!chunk.states_off_host() || !weights_.LandsAcrossPlanes(id)) return true;
  const uint64_t param16_bytes = RoundUp(chunk.elements * BytesOf(chunk.dtype), kPageBytes);
  return chunk.planes.gradient == chunk.planes.param16 + param16_bytes;
}

void JobStates::LayOutMore(uint32_t rows) {
  uint32_t left = rows - table_.LayOutRuns(rows);
  while (left > 0 && table_.laid_out() < spec_->chunks.size()) {
    if (placement_.placed() == table_.laid_out()) placement_.PlaceNext();
    left -= std::min(left, table_.LayOutNext(placement_));
  }
  if (left == 0 || laid_out_) return;
  weights_.LayOut();
  laid_out_ = true;
}

std::shared_ptr<const void> JobStates::GiveUpTables() {
  struct Tables {
    std::shared_ptr<const void> rows;
    std::vector<Extent> extents;
    std::shared_ptr<const shm::JobSpec> spec;
  };
  return std::make_shared<const Tables>(
      Tables{table_.GiveUpRows(), placement_.GiveUpExtents(), spec_});
}

void JobStates::HoldFrozen(FrozenHold hold) {
  TP_CHECK(hold.listing() || hold.chunks().size() == spec_->frozen.size(),
           "a job holds what it lists");
  frozen_hold_ = std::move(hold);
  frozen_.reserve(spec_->frozen.size());
  for (FrozenChunk* chunk : frozen_hold_.chunks()) frozen_.push_back({.chunk = chunk});
}

Status JobStates::ListFrozen(uint32_t rows) {
  TP_RETURN_IF_ERROR(frozen_hold_.table()->TakeMore(*spec_, rows, &frozen_hold_));
  for (FrozenChunk* chunk : frozen_hold_.chunks().subspan(frozen_.size()))
    frozen_.push_back({.chunk = chunk});
  return Status();
}

bool JobStates::WriteRecords(const JobIdentity& identity, uint64_t bytes_max) {
  TP_CHECK(laid_out(), "the places of all planes are known");
  const size_t listed = extents().size();
  const auto place = [this, listed](size_t i) {
    return i < listed ? extents()[i].offset : frozen_[i - listed].chunk->extent.offset;
  };
  return records_.WriteMore(identity, {listed + frozen_.size(), place}, bytes_max);
}

uint64_t JobStates::plane_bytes(ChunkId id) const {
  uint64_t sum = 0;
  for (const uint64_t bytes : InOrder(shm::PlaneBytesOf(*spec_, id))) sum += bytes;
  return sum;
}

void JobStates::BeginMoveOut(MovePlan plan, std::vector<uint64_t> offsets) {
  TP_CHECK(chunks_on_host() > 0 && demoted() == 0 && plan.directories.size() == chunks_on_host(),
           "a job moves once, with all that is on the host");
  move_ =
      MoveUnderWay{.plan = std::move(plan), .ends = std::move(offsets), .end = chunks_on_host()};
}

void JobStates::DropMoveOut() {
  TP_CHECK(!is_moving_out(), "states that a later server finds on NVMe lie there");
  move_.reset();
  records_.ForgetDemotion();
}

void JobStates::MoveRowOut(ChunkId id) {
  const Chunk& chunk = table_.chunk(id);
  TP_CHECK(chunk.state == ChunkState::kResident && chunk.version == sealed_version() &&
               chunk.readers == 0,
           "a job that moves is at rest");
  placement_.MoveNext(id);
  uint64_t& end = move_->ends[placement_.SpillOf(id).directory];
  table_.MoveOut(id, placement_, end);
  end += shm::SpilledChunkBytes(*spec_, id);
}

// Once it is noted, a later server finds the states on NVMe; the planes are returned last.
bool JobStates::MoveOutMore(uint32_t rows) {
  if (!move_->noted) {
    if (!records_.NoteDemoted(move_->plan.directories, rows)) return false;
    move_->noted = true;
    placement_.BeginMove(move_->plan);
  }

  for (uint32_t i = 0; i < rows && move_->next < move_->end; ++i) MoveRowOut(move_->next++);
  TP_POINT("server.demotion_followed");
  if (move_->next < move_->end) return false;

  placement_.EndMove();
  move_.reset();
  return true;
}

}  // namespace tidepool::memserver
