#include "trainer/cache/block_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {

BlockTable::BlockTable(const ChunkLayout* layout, Rank rank, std::byte* base, uint64_t bytes) {
  const size_t chunks = layout->chunks.size();
  home_of_.assign(chunks, kNone);
  place_of_.assign(chunks, kNone);
  // Resident spaces first: their sizes differ, the blocks after them are all equal.
  std::byte* next = base;
  for (ChunkId chunk = 0; chunk < chunks; ++chunk) {
    if (!layout->chunks[chunk].resident || !layout->IsMember(chunk, rank)) continue;
    home_of_[chunk] = static_cast<uint32_t>(places_.size());
    places_.push_back({next, {}});
    next += RoundUp(layout->ChunkBytes(chunk), kPageBytes);
  }
  const uint64_t used = static_cast<uint64_t>(next - base);
  TP_CHECK(used <= bytes, "the rCache has room for the resident chunks");

  const uint64_t block_bytes = layout->BlockBytes();
  blocks_ = layout->BlocksIn(rank, bytes);
  for (uint64_t i = 0; i < blocks_; ++i) {
    free_.push_back(static_cast<uint32_t>(places_.size()));
    places_.push_back({next + i * block_bytes, {}});
  }
  with_memory_ = blocks_;
}

std::deque<uint32_t>::const_iterator BlockTable::FirstWithMemory() const {
  return std::find_if(free_.begin(), free_.end(),
                      [this](uint32_t place) { return places_[place].has_memory; });
}

BlockTable::FreeBlock BlockTable::FreeWithMemory() const {
  const auto found = FirstWithMemory();
  return found == free_.end() ? FreeBlock() : FreeBlock{places_[*found].data, places_[*found].past};
}

void BlockTable::LoseMemory() {
  places_[*FirstWithMemory()].has_memory = false;
  --with_memory_;
}

void BlockTable::Take(ChunkId chunk) {
  TP_CHECK(!has(chunk) && HasRoomFor(chunk), "a chunk is placed once, where there is room");
  if (home_of_[chunk] != kNone) {
    place_of_[chunk] = home_of_[chunk];
    return;
  }
  // The block that was freed first: its last operation has had the longest time to end.
  auto taken = FirstWithMemory();
  if (taken == free_.end()) taken = free_.begin();
  place_of_[chunk] = *taken;
  free_.erase(taken);
  Place& place = places_[place_of_[chunk]];
  if (!std::exchange(place.has_memory, true)) ++with_memory_;
  cached_.insert(std::lower_bound(cached_.begin(), cached_.end(), chunk), chunk);
}

void BlockTable::Drop(ChunkId chunk) {
  place_of_[chunk] = kNone;
  if (home_of_[chunk] == kNone)
    cached_.erase(std::lower_bound(cached_.begin(), cached_.end(), chunk));
}

void BlockTable::Replace(ChunkId victim, ChunkId chunk) {
  TP_CHECK(has(victim) && !has(chunk) && home_of_[victim] == kNone && home_of_[chunk] == kNone,
           "a block passes between evictable chunks");
  const uint32_t place = place_of_[victim];
  Drop(victim);
  place_of_[chunk] = place;
  cached_.insert(std::lower_bound(cached_.begin(), cached_.end(), chunk), chunk);
}

void BlockTable::Give(ChunkId chunk) {
  const uint32_t place = place_of_[chunk];
  TP_CHECK(place != kNone, "only a placed chunk can give up its place");
  Drop(chunk);
  if (home_of_[chunk] == kNone) free_.push_back(place);
}

std::vector<ChunkId> BlockTable::Placed() const {
  std::vector<ChunkId> placed;
  for (ChunkId chunk = 0; chunk < place_of_.size(); ++chunk) {
    if (has(chunk)) placed.push_back(chunk);
  }
  return placed;
}

}  // namespace tidepool::trainer
