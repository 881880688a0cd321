// BlockTable: the place of each chunk in the rCache, and the free blocks.
//
// One thread (the trainer's main thread). It moves no bytes and has no notion of time: a block
// whose gradients are still in flight counts as free; its last operation tells when it may be
// written. So the table is equal on all ranks at the same point of the program.
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
  // Makes space for the resident chunks of `rank`, and blocks from the rest of `bytes`. Requires
  // bytes >= layout->ResidentBytes(rank).
  BlockTable(const ChunkLayout* layout, Rank rank, std::byte* base, uint64_t bytes);

  uint64_t blocks() const { return blocks_; }
  // True when the chunk has a place: its own space, or a block.
  bool has(ChunkId chunk) const { return place_of_[chunk] != kNone; }
  // The address of the chunk. Requires has(chunk).
  std::byte* place(ChunkId chunk) const { return places_[place_of_[chunk]].data; }
  // The present or last use of the chunk's place.
  const BlockPast& past(ChunkId chunk) const { return places_[place_of_[chunk]].past; }
  void set_last_op(ChunkId chunk, OpId op) { places_[place_of_[chunk]].past = {op, 0}; }
  void set_last_use(ChunkId chunk, UseMark use) { places_[place_of_[chunk]].past.use = use; }

  // True when `chunk` can be placed without an eviction.
  bool HasRoomFor(ChunkId chunk) const { return home_of_[chunk] != kNone || !free_.empty(); }
  // Gives the chunk its own space, or the block that has been free longest, of those with memory if
  // there are any. Requires HasRoomFor(chunk), !has(chunk).
  void Take(ChunkId chunk);
  // Gives the block of `victim` to `chunk`.
  void Replace(ChunkId victim, ChunkId chunk);
  // Frees the chunk's block.
  void Give(ChunkId chunk);

  // Blocks, in use or free, whose memory has not been given back to the system since their last
  // use.
  uint64_t with_memory() const { return with_memory_; }
  struct FreeBlock {
    std::byte* data = nullptr;  // null: there is none
    BlockPast past = {};
  };
  // The free one of them that has been free longest.
  FreeBlock FreeWithMemory() const;
  // The memory of FreeWithMemory() has been given back. Requires that there is one.
  void LoseMemory();

  // Evictable chunks that have a block, ascending.
  std::span<const ChunkId> cached() const { return cached_; }
  // All chunks that have a place, ascending.
  std::vector<ChunkId> Placed() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Place {
    std::byte* data;
    BlockPast past;
    bool has_memory = true;
  };
  // The first of free_ with memory, else its end.
  std::deque<uint32_t>::const_iterator FirstWithMemory() const;
  void Drop(ChunkId chunk);

  std::vector<Place> places_;       // resident spaces, then blocks
  std::vector<uint32_t> home_of_;   // by ChunkId: its own space; kNone for evictable chunks
  std::vector<uint32_t> place_of_;  // by ChunkId: its present place
  std::deque<uint32_t> free_;       // blocks, longest free first
  std::vector<ChunkId> cached_;
  uint64_t blocks_ = 0, with_memory_ = 0;
};

}  // namespace tidepool::trainer
