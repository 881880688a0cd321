// The fourth part of JobStates: the runs of the pool that a new job takes.
#include <array>
#include <vector>

#include "base/formats/plane_slack.h"
#include "memserver/residency/job_states.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::memserver {

// The planes that spilled weights land in are taken as one, so that they lie one behind the other.
std::vector<JobStates::Taking> JobStates::Takings() const {
  const std::vector<uint64_t> sizes = ExtentSizes();
  const uint64_t planes_at = sizes.size() - PlanesListed(*spec_),
                 planes = PlanesListed(*spec_) / spec_->chunks.size();
  const bool joins = spec_->dtype != DType::kF32 && spec_->micro_batches == 1 && !is_split();
  std::vector<Taking> takings;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const ChunkId chunk = i < planes_at ? 0 : static_cast<ChunkId>((i - planes_at) / planes);
    const bool away =
        i >= planes_at && ((placement_.IsSpilled(chunk) && !placement_.IsWindowed(chunk)) ||
                           shm::IsOnGpu(*spec_, chunk));
    if (sizes[i] == 0) {
      takings.push_back({0, 0,
                         shm::IsOnGpu(*spec_, chunk)
                             ? kGpuExtent
                             : kSpilledExtent - placement_.DirectoryOf(chunk)});
      continue;
    }
    // The 16-bit plane is the last but one, the gradient the last.
    const bool joined = away && joins && (i - planes_at) % planes == planes - 2;
    const uint64_t slack = i >= planes_at && !away ? SlackOf(sizes[i]) : 0;
    takings.push_back({sizes[i], joined ? sizes[i + 1] : 0, 0, slack, chunk});
    i += joined ? 1 : 0;
  }
  return takings;
}

uint64_t JobStates::SlackToTake() const {
  uint64_t sum = 0;
  for (const Taking& each : Takings()) sum += each.slack;
  return sum;
}

bool JobStates::TakeNewExtents() {
  ChunkId spaced = 0;
  for (const Taking& each : Takings()) {
    if (each.chunk != spaced) spacing_.NextChunk();
    spaced = each.chunk;
    if (each.bytes == 0) {
      extents_.push_back({nullptr, 0, each.elsewhere});
      continue;
    }
    if (each.slack > 0) {
      if (!spacing_.Take(each.bytes, each.slack, &extents_)) return false;
      continue;
    }
    if (!pool_->Take(std::array{each.bytes + each.behind}, &extents_)) return false;
    if (each.behind == 0) continue;
    const Extent both = extents_.back();
    extents_.back().bytes = each.bytes;
    extents_.push_back({both.data + each.bytes, each.behind, both.offset + each.bytes});
  }
  return true;
}

bool JobStates::FindsRuns(const std::shared_ptr<const shm::JobSpec>& spec, HostPool* pool,
                          const Placement& placement, std::span<const Extent> released) {
  JobStates states(spec, pool);
  states.placement_ = placement;
  std::vector<uint64_t> sizes;
  for (const Taking& each : states.Takings()) {
    if (each.bytes > 0) sizes.push_back(each.bytes + each.behind + each.slack);
  }
  return pool->FindsRuns(sizes, released);
}

}  // namespace tidepool::memserver
