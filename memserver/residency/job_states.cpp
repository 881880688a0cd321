#include "memserver/residency/job_states.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {

JobStates::JobStates(std::shared_ptr<const shm::JobSpec> spec, HostPool* pool, Placement placement)
    : spec_(std::move(spec)),
      placement_(spec_.get(), pool, std::move(placement)),
      records_(spec_.get()),
      table_(spec_.get(), &records_),
      weights_(spec_.get(), &placement_, &table_),
      stand_ins_(spec_.get(), pool) {}

Result<std::unique_ptr<JobStates>> JobStates::Create(std::shared_ptr<const shm::JobSpec> spec,
                                                     HostPool* pool, const Placement& placement) {
  std::unique_ptr<JobStates> states(new JobStates(std::move(spec), pool, placement));
  if (!states->placement_.TakeNew()) {
    return Status(ErrorId::kPoolFull,
                  "job " + states->spec().name + " needs " +
                      FormatBytes(states->placement_.BytesToTake()) +
                      " of host memory; that much is free, but in runs of at most " +
                      FormatBytes(pool->largest_free_bytes()));
  }

  states->LayOut();
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
  if (!states->placement_.TakeKept(kept.extent_offsets, kept.demoted)) return misplaced;
  states->LayOut();

  // Weights land nowhere any more in those that were demoted.
  for (ChunkId id = kept.demoted; id < kept.spec->chunks.size(); ++id) {
    if (!states->LandsWhereItShould(id)) return misplaced;
  }
  TP_RETURN_IF_ERROR(states->table_.Recover(kept.sealed_version, &states->stand_ins_));
  return states;
}

// Weights that land across two planes need the second one right behind the first.
bool JobStates::LandsWhereItShould(ChunkId id) const {
  const Chunk& chunk = table_.saved(id);
  if (!chunk.away() || !weights_.LandsAcrossPlanes(id)) return true;
  const uint64_t param16_bytes = RoundUp(chunk.elements * BytesOf(spec_->dtype), kPageBytes);
  return chunk.planes.gradient == chunk.planes.param16 + param16_bytes;
}

void JobStates::LayOut() {
  records_.LayOut(extents().front());
  table_.LayOut(placement_);
  weights_.LayOut();
}

void JobStates::HoldFrozen(FrozenHold hold) {
  TP_CHECK(hold.chunks().size() == spec_->frozen.size(), "a job holds what it lists");
  frozen_hold_ = std::move(hold);
  for (FrozenChunk* chunk : frozen_hold_.chunks()) frozen_.push_back({.chunk = chunk});
}

void JobStates::WriteFirstRecords(const JobIdentity& identity) {
  std::vector<uint64_t> places;
  places.reserve(extents().size() + frozen_.size());
  for (const Extent& extent : extents()) places.push_back(extent.offset);
  for (const FrozenUse& use : frozen_) places.push_back(use.chunk->extent.offset);
  records_.WriteFirst(identity, places);
}

uint64_t JobStates::plane_bytes(ChunkId id) const {
  uint64_t sum = 0;
  for (const uint64_t bytes : InOrder(shm::PlaneBytesOf(*spec_, id))) sum += bytes;
  return sum;
}

void JobStates::MoveOut(const MovePlan& plan, std::span<const uint64_t> offsets) {
  const ChunkId count = chunks_on_host();
  TP_CHECK(count > 0 && demoted() == 0 && plan.directories.size() == count,
           "a job moves once, with all that is on the host");
  for (ChunkId id = 0; id < count; ++id) {
    const Chunk& chunk = table_.chunk(id);
    TP_CHECK(chunk.state == ChunkState::kResident && chunk.version == sealed_version() &&
                 chunk.readers == 0,
             "a job that moves is at rest");
  }

  // From here on a later server finds the states on NVMe; the planes go back after that.
  records_.NoteDemoted(plan.directories);
  placement_.MoveOut(plan);
  for (ChunkId id = 0; id < count; ++id) table_.MoveOut(id, placement_);
  for (uint32_t d = 0; d < offsets.size(); ++d) SetDemotedRange(d, offsets[d]);
}

}  // namespace tidepool::memserver
