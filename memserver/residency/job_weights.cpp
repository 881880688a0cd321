#include "memserver/residency/job_weights.h"

#include <algorithm>

#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"

namespace tidepool::memserver {
namespace {

// A rank fetches each chunk a few times in a micro-batch: forward, backward, and again for
// recomputed activations.
constexpr uint64_t kFetchesAChunk = 4;

}  // namespace

void JobWeights::LayOut() {
  const shm::WeightSpill& weights = placement_->weights();
  if (!weights.any()) return;
  const size_t chunks = spec_->chunks.size();
  std::vector<std::byte*> areas;
  for (size_t id = chunks - weights.areas; id < chunks; ++id) {
    std::byte*& plane = At(static_cast<ChunkId>(id)).planes.param16;
    if (plane != nullptr) areas.push_back(plane);
    plane = nullptr;
  }
  TP_CHECK(areas.size() == weights.areas, "the last chunks have the areas");

  const uint64_t uses = kFetchesAChunk * spec_->micro_batches * (chunks - weights.first) + 64;
  const auto uses_max = static_cast<uint32_t>(std::min<uint64_t>(uses, WeightUses::kUsesMax));
  window_ = WeightWindow(weights.first, shm::WeightSlotBytes(*spec_, weights.first), areas,
                         WeightUses(spec_->world, uses_max));
  put_behind_.assign(spec_->world, weights.first);
}

bool JobWeights::LandsAcrossPlanes(ChunkId id) const {
  return At(id).planes.master == nullptr && !spec_->HasF32Slots() && !At(id).is_split() &&
         !window_.Covers(id);
}

std::byte* JobWeights::PutBytes(ChunkId id, uint64_t element) const {
  const ChunkPlanes& planes = At(id).planes;
  std::byte* plane = window_.Covers(id) ? window_.LandingOf(id) : planes.master;
  if (plane == nullptr) plane = LandsAcrossPlanes(id) ? planes.param16 : planes.gradient;
  return plane + MasterBytes(At(id).states, element);
}

bool JobWeights::MayLand(ChunkId id) const {
  if (!window_.Covers(id)) return true;
  const ChunkId before = window_.LandsBehind(id);
  return before == shm::kNoSpill || At(before).version != kNoVersion ||
         TP_PLANTED("residency.weights_land_early");
}

bool JobWeights::IsPutInOrder(ChunkId id, Rank rank) {
  if (!window_.Covers(id) || window_.LandsBehind(id) == shm::kNoSpill) return true;
  for (ChunkId& before = put_behind_[rank]; before <= window_.LandsBehind(id); ++before) {
    if (spec_->IsMember(before, rank) &&
        chunks_->intake(before, rank).put_elements < At(before).shard_elements)
      return false;
  }
  return true;
}

std::byte* JobWeights::PutHighBytes(ChunkId id, uint64_t element) const {
  std::byte* const plane =
      window_.Covers(id) ? window_.LandingOf(id) + window_.slot_bytes() : At(id).planes.param16;
  return plane + element * BytesOf(At(id).dtype);
}

TP_HOT bool JobWeights::HoldsWeights(ChunkId id) const {
  return !window_.Covers(id) ||
         (At(id).planes.param16 != nullptr && At(id).state != ChunkState::kUpdating);
}

// The epoch of a chunk that is due changes soon.
bool JobWeights::MayFill(ChunkId id) const {
  const Chunk& chunk = chunks_->chunk(id);
  const bool at_rest =
      chunk.state != ChunkState::kUpdateDue && chunk.state != ChunkState::kUpdating;
  return chunks_->weights_ready() && window_.Covers(id) && at_rest &&
         window_.SlotOf(id) == WeightWindow::kNone;
}

uint32_t JobWeights::GiveSlot(ChunkId id, uint64_t until_next, bool filling) {
  const auto may_go = [this](ChunkId other) {
    const Chunk& chunk = At(other);
    return chunk.readers == 0 && chunk.state != ChunkState::kUpdating && !window_.IsAsked(other);
  };
  const uint32_t slot = window_.FindRoom(until_next, may_go);
  if (slot == WeightWindow::kNone) return slot;

  if (const ChunkId gone = window_.slots()[slot].chunk; gone != shm::kNoSpill)
    At(gone).planes.param16 = nullptr;
  window_.Give(slot, id, filling);
  if (!filling) At(id).planes.param16 = window_.slots()[slot].data;
  return slot;
}

// A chunk that an update is writing has its old weights nowhere any more, and will have the new
// ones on NVMe.
bool JobWeights::EndFill(uint32_t slot, uint64_t epoch) {
  const ChunkId id = window_.slots()[slot].chunk;
  Chunk& chunk = At(id);
  const bool holds = TP_PLANTED("residency.passed_weights_held") ||
                     (chunk.state != ChunkState::kUpdating && chunks_->EpochOf(chunk) == epoch);
  window_.EndFill(slot, holds);
  if (!holds) return false;
  chunk.planes.param16 = window_.slots()[slot].data;
  chunk.awaited = false;  // a rank that waits for another version says so again
  return true;
}

void JobWeights::HoldForUpdate(ChunkId id) {
  if (!window_.Covers(id) || window_.SlotOf(id) != WeightWindow::kNone) return;
  const uint64_t until_next = At(id).awaited ? 0 : window_.uses().UntilNext(id);
  if (until_next != WeightUses::kNever) GiveSlot(id, until_next, false);
}

}  // namespace tidepool::memserver
