#include "memserver/residency/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/formats/plane_slack.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"

namespace tidepool::memserver {
namespace {

// The same in one directory, where there is no choice.
bool TakeAll(uint64_t chunks, uint64_t bytes, uint64_t left, MovePlan* plan) {
  if (left < bytes) return false;
  plan->directories.assign(chunks, 0);
  plan->nvme_bytes = {bytes};
  return true;
}

// How many chunks of [begin, begin + at_most) fit into `room` bytes together.
template <typename BytesOf>
uint64_t Fitting(uint64_t begin, uint64_t at_most, uint64_t room, const BytesOf& bytes_of) {
  if (bytes_of(begin, begin + at_most) <= room) return at_most;
  uint64_t low = 0, high = at_most;  // `low` fits, `high` does not
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (bytes_of(begin, begin + middle) <= room ? low : high) = middle;
  }
  return low;
}

// Stripes chunks over directories: each stripe goes to the directory with the most room left, so
// that several drives read at once. A stripe is one chunk, or a few of a large job. False: no room.
bool Stripe(const shm::JobSpec& spec, uint64_t first, uint64_t end, std::vector<uint64_t> left,
            MovePlan* plan) {
  // Not summed up if the description has its sums.
  const auto bytes_of = [&spec](uint64_t begin, uint64_t behind) {
    if (spec.sums.made == nullptr && behind == begin + 1)
      return shm::SpilledChunkBytes(spec, static_cast<ChunkId>(begin));
    return shm::NvmeBytesOf(spec, static_cast<ChunkId>(begin)) -
           shm::NvmeBytesOf(spec, static_cast<ChunkId>(behind));
  };
  if (left.size() == 1) return TakeAll(end - first, bytes_of(first, end), left.front(), plan);

  const uint64_t stripe = TP_PLANTED("residency.striped_by_chunk")
                              ? 1
                              : std::max<uint64_t>(1, DivideUp(end - first, kStripesMax));
  plan->nvme_bytes.assign(left.size(), 0);
  plan->directories.reserve(end - first);
  // A stripe is cut if little room is left; the number of cuts is bounded.
  uint64_t choices = 2 * kStripesMax;
  while (first < end) {
    TP_POINT("server.directory_chosen");
    const auto most = std::max_element(left.begin(), left.end());
    if (most == left.end() || choices-- == 0) return false;
    const uint64_t count = Fitting(first, std::min(stripe, end - first), *most, bytes_of);
    if (count == 0) return false;

    const uint64_t bytes = bytes_of(first, first + count);
    *most -= bytes;
    const auto directory = static_cast<size_t>(most - left.begin());
    plan->directories.insert(plan->directories.end(), count, static_cast<uint8_t>(directory));
    plan->nvme_bytes[directory] += bytes;
    first += count;
  }
  return true;
}

// The first chunk to spill such that the most chunks stay on the host.
ChunkId LeastSpilled(const shm::JobSpec& spec, uint64_t pool_free) {
  // The more chunks spill, the less is on the host.
  const auto fits = [&spec, pool_free](ChunkId first) {
    return shm::HostBytesOf(spec, first) <= pool_free;
  };
  const auto chunks = static_cast<ChunkId>(spec.chunks.size());
  if (fits(chunks)) return shm::kNoSpill;
  ChunkId low = spec.states_on_gpu, high = chunks;  // `low` fits, or is the best possible
  while (high - low > 1) {
    const ChunkId middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low == chunks ? shm::kNoSpill : low;
}

}  // namespace

uint64_t Placement::nvme_total() const {
  return std::accumulate(nvme_bytes.begin(), nvme_bytes.end(), uint64_t{0});
}

std::optional<MovePlan> PlanMove(const shm::JobSpec& spec, ChunkId chunks,
                                 const std::vector<uint64_t>& nvme_free) {
  MovePlan plan;
  return Stripe(spec, 0, chunks, nvme_free, &plan) ? std::optional(std::move(plan)) : std::nullopt;
}

uint64_t MovableBytes(const shm::JobSpec& spec, ChunkId on_host) {
  const ChunkId first_spilled = on_host == spec.chunks.size() ? shm::kNoSpill : on_host;
  return shm::HostBytesOf(spec, first_spilled) - shm::HostBytesOf(spec, 0);
}

ChunkId FirstSpilledOf(const shm::JobSpec& spec, StatesOn states_on, const Space& space) {
  if (!shm::MaySpill(spec) || states_on == StatesOn::kHost || space.nvme_free.empty())
    return shm::kNoSpill;
  if (states_on == StatesOn::kAuto) return LeastSpilled(spec, space.pool_free);
  return spec.states_on_gpu < spec.chunks.size() ? spec.states_on_gpu : shm::kNoSpill;
}

Result<Placement> PlaceStates(const shm::JobSpec& spec, StatesOn states_on, const Space& space) {
  Placement placement;
  placement.first_spilled = FirstSpilledOf(spec, states_on, space);
  placement.weights = shm::WeightsSpilledFor(spec, placement.first_spilled, space.pool_free);
  placement.host_bytes = shm::HostBytesOf(spec, placement.first_spilled, placement.weights);

  MovePlan plan;
  if (!placement.spills() ||
      Stripe(spec, placement.first_spilled, spec.chunks.size(), space.nvme_free, &plan)) {
    placement.directories = std::move(plan.directories);
    placement.nvme_bytes = std::move(plan.nvme_bytes);
    return placement;
  }

  const uint64_t free =
      std::accumulate(space.nvme_free.begin(), space.nvme_free.end(), uint64_t{0});
  return Status(ErrorId::kNvmeFull,
                "job " + spec.name + " needs " +
                    FormatBytes(shm::NvmeBytesOf(spec, placement.first_spilled)) +
                    " on NVMe (two slots a chunk); " + FormatBytes(free) + " are free in " +
                    std::to_string(space.nvme_free.size()) + " directories")
      .Why("all of it on the host would take " +
           FormatBytes(shm::HostBytesOf(spec, shm::kNoSpill)) + "; the job may have " +
           FormatBytes(space.pool_free) + " there");
}

}  // namespace tidepool::memserver
