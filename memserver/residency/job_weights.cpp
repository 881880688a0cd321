// The third part of JobStates: weights that are on NVMe alone, where they land when they are put,
// and their window.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/planted.h"
#include "base/units.h"
#include "memserver/residency/job_states.h"

namespace tidepool::memserver {
namespace {

// A rank fetches each chunk a few times in a micro-batch: forward, backward, and again when its
// activations are made anew.
constexpr uint64_t kFetchesAChunk = 4;

bool IsSpilled(uint64_t offset) {
  return offset > kSpilledExtent - kNvmeDirectoriesMax;
}

}  // namespace

// The last chunks have areas of the window in place of their 16-bit planes; those between have
// none.
uint64_t JobStates::WeightBytesListed(ChunkId id, uint64_t plane_bytes) const {
  const shm::WeightSpill& weights = placement_.weights;
  if (!placement_.IsWindowed(id)) return plane_bytes;
  return id + weights.areas < spec_->chunks.size() ? 0
                                                   : shm::WeightAreaBytes(*spec_, weights.first);
}

// `offsets`: of the 16-bit planes, by chunk. Areas are told from planes of their own by the chunks
// between, of which there is one at least.
bool JobStates::ReadWeightPlacement(std::span<const uint64_t> offsets) {
  const auto first = std::find_if(offsets.begin(), offsets.end(), IsSpilled);
  if (first == offsets.end()) return true;
  const auto area = std::find_if_not(first, offsets.end(), IsSpilled);
  const auto areas = static_cast<uint64_t>(offsets.end() - area);
  if (areas == 0 || areas > shm::kWeightAreasMax || std::any_of(area, offsets.end(), IsSpilled))
    return false;
  const auto chunk = static_cast<ChunkId>(first - offsets.begin());
  placement_.weights = {.first = chunk, .areas = static_cast<uint32_t>(areas)};
  return placement_.spills() && chunk >= placement_.first_spilled &&
         offsets.size() - chunk > 2 * areas;
}

void JobStates::LayOutWindow() {
  const shm::WeightSpill& weights = placement_.weights;
  if (!weights.any()) return;
  std::vector<std::byte*> areas;
  for (ChunkId id = weights.first; id < chunks_.size(); ++id) {
    std::byte*& plane = chunks_[id].planes.param16;
    if (plane != nullptr) areas.push_back(plane);
    plane = nullptr;
  }
  TP_CHECK(areas.size() == weights.areas, "the last chunks have the areas");
  const uint64_t uses =
      kFetchesAChunk * spec_->micro_batches * (chunks_.size() - weights.first) + 64;
  const auto uses_max = static_cast<uint32_t>(std::min<uint64_t>(uses, WeightUses::kUsesMax));
  window_ = WeightWindow(weights.first, shm::WeightSlotBytes(*spec_, weights.first), areas,
                         WeightUses(spec_->world, uses_max));
  put_behind_.assign(spec_->world, weights.first);
}

bool JobStates::MayLand(ChunkId id) const {
  if (!window_.Covers(id)) return true;
  const ChunkId before = window_.LandsBehind(id);
  return before == shm::kNoSpill || chunks_[before].version != kNoVersion ||
         TP_PLANTED("residency.weights_land_early");
}

bool JobStates::IsPutInOrder(ChunkId id, Rank rank) {
  if (!window_.Covers(id) || window_.LandsBehind(id) == shm::kNoSpill) return true;
  for (ChunkId& before = put_behind_[rank]; before <= window_.LandsBehind(id); ++before) {
    if (spec_->IsMember(before, rank) &&
        intake(before, rank).put_elements < chunks_[before].shard_elements)
      return false;
  }
  return true;
}

std::byte* JobStates::PutHighBytes(ChunkId id, uint64_t element) const {
  std::byte* const plane = window_.Covers(id) ? window_.LandingOf(id) + window_.slot_bytes()
                                              : chunks_[id].planes.param16;
  return plane + element * BytesOf(spec_->dtype);
}

bool JobStates::HoldsWeights(ChunkId id) const {
  return !window_.Covers(id) ||
         (chunks_[id].planes.param16 != nullptr && chunks_[id].state != ChunkState::kUpdating);
}

// The epoch of a chunk that is due changes soon.
bool JobStates::MayFill(ChunkId id) const {
  const Chunk& chunk = Look(id);
  const bool at_rest =
      chunk.state != ChunkState::kUpdateDue && chunk.state != ChunkState::kUpdating;
  return weights_ready() && window_.Covers(id) && at_rest &&
         window_.SlotOf(id) == WeightWindow::kNone;
}

uint32_t JobStates::GiveSlot(ChunkId id, uint64_t until_next, bool filling) {
  const auto may_go = [this](ChunkId other) {
    const Chunk& chunk = chunks_[other];
    return chunk.readers == 0 && chunk.state != ChunkState::kUpdating && !window_.IsAsked(other);
  };
  const uint32_t slot = window_.FindRoom(until_next, may_go);
  if (slot == WeightWindow::kNone) return slot;
  if (const ChunkId gone = window_.slots()[slot].chunk; gone != shm::kNoSpill)
    chunks_[gone].planes.param16 = nullptr;
  window_.Give(slot, id, filling);
  if (!filling) chunks_[id].planes.param16 = window_.slots()[slot].data;
  return slot;
}

// A chunk that an update is writing has the old weights in no place any more, and will have the new
// ones on NVMe.
bool JobStates::EndFill(uint32_t slot, uint64_t epoch) {
  const ChunkId id = window_.slots()[slot].chunk;
  Chunk& chunk = chunks_[id];
  const bool holds = TP_PLANTED("residency.passed_weights_held") ||
                     (chunk.state != ChunkState::kUpdating && EpochOf(chunk) == epoch);
  window_.EndFill(slot, holds);
  if (!holds) return false;
  chunk.planes.param16 = window_.slots()[slot].data;
  chunk.awaited = false;  // whoever waits for something else says so again
  return true;
}

void JobStates::HoldForUpdate(ChunkId id) {
  if (!window_.Covers(id) || window_.SlotOf(id) != WeightWindow::kNone) return;
  const uint64_t until_next = chunks_[id].awaited ? 0 : window_.uses().UntilNext(id);
  if (until_next != WeightUses::kNever) GiveSlot(id, until_next, false);
}

void JobStates::HoldFrozen(FrozenHold hold) {
  TP_CHECK(hold.chunks().size() == spec_->frozen.size(), "a job holds what it lists");
  frozen_hold_ = std::move(hold);
  for (FrozenChunk* chunk : frozen_hold_.chunks()) frozen_.push_back({.chunk = chunk});
}

}  // namespace tidepool::memserver
