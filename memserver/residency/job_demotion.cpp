// The second part of JobStates: states that leave the host for NVMe while their job has no ranks,
// and where they lie there.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/point.h"
#include "memserver/residency/job_states.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {

uint64_t JobStates::movable_bytes() const {
  return uses_gpus() ? 0 : MovableBytes(*spec_, chunks_on_host());
}

void JobStates::SetRange(uint32_t directory, uint64_t offset, uint64_t first, uint64_t end) {
  for (uint64_t id = first; id < end; ++id) {
    Chunk& chunk = chunks_[id];
    if (!chunk.spilled || chunk.spill.directory != directory) continue;
    chunk.spill.offset = offset;
    offset += 2 * chunk.spill.slot_bytes;
  }
}

// The placement counts them already.
void JobStates::NoteDemoted(ChunkId demoted) {
  demoted_ = demoted;
  demoted_bytes_.assign(placement_.nvme_bytes.size(), 0);
  for (ChunkId id = 0; id < demoted; ++id)
    demoted_bytes_[placement_.DirectoryOf(id)] += shm::SpilledChunkBytes(*spec_, id);
}

// Calls `visit` for each extent that leaves the host with the chunk, with where its plane is noted.
template <typename Visit>
void JobStates::ForEachMovable(ChunkId id, Visit visit) const {
  const auto all = InOrder(shm::PlaneBytesOf(*spec_, id)),
             left = InOrder(shm::HostPlaneBytesOf(*spec_, id, true));
  const auto listed = static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [](uint64_t bytes) { return bytes > 0; }));
  size_t at = extents_.size() - listed * (chunks_.size() - id);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] > 0 && left[i] == 0) visit(at, i);
    at += all[i] > 0 ? 1 : 0;
  }
}

void JobStates::AddMovable(std::vector<Extent>* extents) const {
  for (ChunkId id = 0; id < chunks_on_host(); ++id) {
    ForEachMovable(id, [&](size_t at, size_t) { extents->push_back(extents_[at]); });
  }
  extents->insert(extents->end(), spacing_.empty_pages().begin(), spacing_.empty_pages().end());
}

// Its planes go back to the pool, but for those that stay on the host.
void JobStates::LeaveHost(ChunkId id, uint32_t directory) {
  Chunk& chunk = chunks_[id];
  ChunkPlanes& planes = chunk.planes;
  const std::array<std::byte**, kPlanesMax> places{
      &planes.master, &planes.momentum, &planes.variance, &planes.param16, &planes.gradient};
  ForEachMovable(id, [&](size_t at, size_t plane) {
    Extent& extent = extents_[at];
    pool_->Release(std::span(&extent, 1));
    pool_bytes_ -= extent.bytes;
    extent = {nullptr, 0, kSpilledExtent - directory};
    *places[plane] = nullptr;
  });
  chunk.spilled = true;
  chunk.spill = {directory, 0, shm::SlotBytes(*spec_, id)};
}

void JobStates::MoveOut(const MovePlan& plan, std::span<const uint64_t> offsets) {
  const ChunkId count = chunks_on_host();
  TP_CHECK(count > 0 && demoted_ == 0 && plan.directories.size() == count,
           "a job moves once, with all that is on the host");
  for (ChunkId id = 0; id < count; ++id) {
    const Chunk& chunk = Look(id);
    TP_CHECK(chunk.state == ChunkState::kResident && chunk.version == sealed_version() &&
                 chunk.readers == 0,
             "a job that moves is at rest");
    chunk.record->demoted_to = plan.directories[id];
  }
  TP_POINT("server.demotion_noted");
  record_->demoted.store(DemotedWord(record_->nonce, {chunks_.front().record, count}),
                         std::memory_order_release);
  TP_POINT("server.demotion_committed");
  held_bytes_ = 0;
  placement_.nvme_bytes.resize(std::max(placement_.nvme_bytes.size(), plan.nvme_bytes.size()));
  for (size_t d = 0; d < plan.nvme_bytes.size(); ++d)
    placement_.nvme_bytes[d] += plan.nvme_bytes[d];
  placement_.directories.insert(placement_.directories.begin(), plan.directories.begin(),
                                plan.directories.end());
  placement_.first_spilled = 0;
  NoteDemoted(count);
  for (ChunkId id = 0; id < count; ++id) LeaveHost(id, plan.directories[id]);
  pool_bytes_ -= spacing_.bytes();
  spacing_.Release();
  for (uint32_t d = 0; d < offsets.size(); ++d) SetDemotedRange(d, offsets[d]);
  TP_CHECK(pool_bytes_ == BytesToTake(), "admission counts exactly what a job takes");
}

}  // namespace tidepool::memserver
