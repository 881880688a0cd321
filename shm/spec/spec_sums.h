// SpecSums: the memory that a job's states take, summed up once where its description is decoded,
// so that admission does not iterate over its chunks again.
//
// Made by MakeSums (shm/spec/make_sums.h) on the decoding thread; immutable. Functions of this
// folder use them if a description has some, and else sum up anew, with the same result. Memory:
// five words per chunk, and a name per frozen chunk.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/formats/content_hash.h"
#include "shm/spec/spec_limits.h"

namespace tidepool::shm {

// Pool bytes of all states of a job, by plane (shm/spec/state_bytes.h).
struct StateBytes {
  uint64_t master = 0;    // 4 bytes per element, 2 if it is split
  uint64_t momentum = 0;  // 4, 2 or about 1.13 bytes per element; 0 if the rule has none
  uint64_t variance = 0;  // the same
  uint64_t param16 = 0;   // 2 bytes per element for 16-bit jobs, else 0 (master is fetched)
  uint64_t gradient = 0;  // 4 bytes for fp32 jobs or accumulation, else 2
  // One buffer per rank: incoming gradients that are to be added, weights that are to be split.
  uint64_t staging = 0;
  uint64_t records = 0;  // chunk records, step record, norm sums (kept memory)
  uint64_t total() const {
    return master + momentum + variance + param16 + gradient + staging + records;
  }
};

// Costs of windows for 16-bit weights, by block of kBlock chunks, so that the one that fits is
// found without iterating over all chunks.
struct WindowSums {
  static constexpr uint64_t kBlock = 256;

  // Window bytes of the chunks from each block on.
  std::vector<uint64_t> slot;
  // By number of areas - 1: see WindowCost; the least cost from each block on.
  std::array<std::vector<int64_t>, kWeightAreasMax> least_cost;
};

struct SpecSums {
  StateBytes states;               // StateBytesOf
  uint64_t frozen_pool_bytes = 0;  // FrozenPoolBytes
  uint64_t parameter_count = 0;    // ParameterCount
  // By chunk, and one entry behind the last; see HostBytesOf and NvmeBytesOf. Pool bytes of all
  // planes of the chunks from this one on, if none spills.
  std::vector<uint64_t> pooled;
  // Bytes that are not in the pool when chunks from this one on spill.
  std::vector<uint64_t> off_host;
  // Pool bytes of only those planes that leave it when a chunk spills (MovablePlanesFrom).
  std::vector<uint64_t> movable;
  // Pool bytes of the 16-bit weights of chunks from this one on.
  std::vector<uint64_t> weights;
  std::vector<uint64_t> nvme;       // bytes on NVMe when chunks from this one on spill
  WindowSums windows;               // empty if the job has no 16-bit weights
  uint64_t pieces = 0, shards = 0;  // TableCountsOf
  uint64_t extents = 0;             // ExtentCount
  // By rank: LargestShards and ChunksOfRanks.
  std::vector<uint64_t> largest_shards;
  std::vector<uint32_t> chunks_of_ranks;
  uint64_t encoded_bytes = 0;  // of Encode
  // By rank; empty if the job has no states on GPUs.
  std::vector<uint64_t> gpu_staging_elements, gpu_share_bytes;
  // Bytes and content of the frozen chunks, each once, in order.
  std::vector<std::pair<uint64_t, ContentHash>> frozen;
};

// The most bytes that the sums take for a description with this many chunks and frozen chunks.
inline uint64_t SumsBytes(uint64_t chunks, uint64_t frozen) {
  const uint64_t blocks = (chunks / WindowSums::kBlock + 1) * (1 + kWeightAreasMax);
  return sizeof(SpecSums) + (5 * (chunks + 1) + blocks + 4 * kRanksMax) * sizeof(uint64_t) +
         frozen * sizeof(std::pair<uint64_t, ContentHash>);
}

// The sums of one description. Copies have none, because a copied description may be changed.
struct KeptSums {
  KeptSums() = default;
  KeptSums(const KeptSums&) {}
  KeptSums(KeptSums&&) = default;
  KeptSums& operator=(const KeptSums& other) {
    if (this != &other) made.reset();
    return *this;
  }
  KeptSums& operator=(KeptSums&&) = default;
  ~KeptSums() = default;

  std::shared_ptr<const SpecSums> made;
};

}  // namespace tidepool::shm
