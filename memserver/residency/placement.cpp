#include "memserver/residency/placement.h"

#include <algorithm>
#include <numeric>

#include "base/units.h"

namespace tidepool::memserver {
namespace {

// Striped by chunk: each goes to the directory with the most room left, so that several are read at once. False when one fits nowhere.
bool Stripe(const shm::JobSpec& spec, const Space& space, Placement* placement) {
  std::vector<uint64_t> left = space.nvme_free;
  placement->nvme_bytes.assign(left.size(), 0);
  for (uint64_t id = placement->first_spilled; id < spec.chunks.size(); ++id) {
    const auto most = std::max_element(left.begin(), left.end());
    const uint64_t bytes = shm::SpilledChunkBytes(spec, static_cast<ChunkId>(id));
    if (most == left.end() || *most < bytes) return false;
    *most -= bytes;
    const auto directory = static_cast<size_t>(most - left.begin());
    placement->directories.push_back(static_cast<uint8_t>(directory));
    placement->nvme_bytes[directory] += bytes;
  }
  return true;
}

// The largest number of chunks that stay on the host.
ChunkId LeastSpilled(const shm::JobSpec& spec, uint64_t pool_free) {
  const auto chunks = static_cast<ChunkId>(spec.chunks.size());
  uint64_t host = shm::HostStateBytesOf(spec, chunks).total();
  ChunkId first = chunks;
  while (first > 0 && host > pool_free) {
    --first;
    const shm::PlaneBytes all = shm::PlaneBytesOf(spec, first), kept = shm::HostPlaneBytesOf(spec, first, true);
    host -= RoundUp(all.master, kPageBytes) - RoundUp(kept.master, kPageBytes);
    host -= RoundUp(all.momentum, kPageBytes) + RoundUp(all.variance, kPageBytes);
  }
  return first == chunks ? shm::kNoSpill : first;
}

}  // namespace

uint64_t Placement::nvme_total() const {
  return std::accumulate(nvme_bytes.begin(), nvme_bytes.end(), uint64_t{0});
}

ChunkId FirstSpilledOf(const shm::JobSpec& spec, StatesOn states_on, const Space& space) {
  if (!shm::MaySpill(spec) || states_on == StatesOn::kHost || space.nvme_free.empty()) return shm::kNoSpill;
  return states_on == StatesOn::kNvme ? 0 : LeastSpilled(spec, space.pool_free);
}

Result<Placement> PlaceStates(const shm::JobSpec& spec, StatesOn states_on, const Space& space) {
  Placement placement;
  placement.first_spilled = FirstSpilledOf(spec, states_on, space);
  placement.host_bytes = shm::HostStateBytesOf(spec, placement.first_spilled).total();
  if (!placement.spills() || Stripe(spec, space, &placement)) return placement;
  const uint64_t free = std::accumulate(space.nvme_free.begin(), space.nvme_free.end(), uint64_t{0});
  return Status(ErrorId::kNvmeFull, "job " + spec.name + " needs " + FormatBytes(shm::NvmeBytesOf(spec, placement.first_spilled)) +
                                        " on NVMe (two slots a chunk); " + FormatBytes(free) + " are free in " +
                                        std::to_string(space.nvme_free.size()) + " directories")
      .Why("all of it on the host would take " + FormatBytes(shm::HostStateBytesOf(spec, shm::kNoSpill).total()) + "; the job may have " +
           FormatBytes(space.pool_free) + " there");
}

}  // namespace tidepool::memserver
