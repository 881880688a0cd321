// BlockTable: which chunk lies where in the rCache, and which blocks are free.
//
// One thread (the trainer's main thread). It moves no bytes and knows no time: a block whose
// gradients are still on their way counts as free, its last operation says when it may really be
// written. So the table is the same on all ranks at the same point of the program.
//
//   rCache: | resident chunk | resident chunk | ... | block 0 | block 1 | ... | block n-1 | rest |
//
// Each of them starts on 4 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/ids.h"
#include "trainer/cache/pipeline_setup.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

class BlockTable {
 public:
  // Room for the resident chunks of `rank`, and blocks in what is left of `bytes`. Requires bytes
  // >= layout->ResidentBytes(rank).
  BlockTable(const ChunkLayout* layout, Rank rank, std::byte* base, uint64_t bytes);

  uint64_t blocks() const { return blocks_; }
  // True when the chunk has a place, of its own or a block.
  bool has(ChunkId chunk) const { return place_of_[chunk] != kNone; }
  // Where the chunk lies. Requires has(chunk).
  std::byte* place(ChunkId chunk) const { return places_[place_of_[chunk]].data; }
  // What uses the chunk's place now or used it last.
  const BlockPast& past(ChunkId chunk) const { return places_[place_of_[chunk]].past; }
  void set_last_op(ChunkId chunk, OpId op) { places_[place_of_[chunk]].past = {op, 0}; }
  void set_last_use(ChunkId chunk, UseMark use) { places_[place_of_[chunk]].past.use = use; }

  // True when `chunk` can be placed without an eviction.
  bool HasRoomFor(ChunkId chunk) const { return home_of_[chunk] != kNone || !free_.empty(); }
  // The chunk gets its own room, or the block that has been free longest. Requires
  // HasRoomFor(chunk), !has(chunk).
  void Take(ChunkId chunk);
  // The chunk gets the block of `victim`, which has none any more.
  void Replace(ChunkId victim, ChunkId chunk);
  // The chunk's block becomes free.
  void Give(ChunkId chunk);

  // Evictable chunks that have a block, ascending.
  std::span<const ChunkId> cached() const { return cached_; }
  // All chunks that have a place, ascending.
  std::vector<ChunkId> Placed() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Place {
    std::byte* data;
    BlockPast past;
  };
  void Drop(ChunkId chunk);

  std::vector<Place> places_;       // resident rooms, then blocks
  std::vector<uint32_t> home_of_;   // by ChunkId: its own room; kNone for evictable chunks
  std::vector<uint32_t> place_of_;  // by ChunkId: where it is now
  std::deque<uint32_t> free_;       // blocks, the one that has been free longest first
  std::vector<ChunkId> cached_;
  uint64_t blocks_ = 0;
};

}  // namespace tidepool::trainer
