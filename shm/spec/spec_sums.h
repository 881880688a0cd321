// SpecSums: what a job's states take, added up once where its description is decoded, so that
// nobody who admits it goes through its chunks again.
//
// Made by Decode, on the thread that decodes; never changed. Functions of shm/spec/job_spec.h,
// shm/spec/state_footprint.h, shm/spec/gpu_states.h and shm/spec/frozen.h use it where a
// description has one, and else add up anew: the sums are the same. Memory: three words a chunk,
// and a name a frozen one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "shm/spec/job_spec.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::shm {

// What windows of 16-bit weights cost, by block of so many chunks, so that the one that fits is
// found without a way through all of them.
struct WindowSums {
  static constexpr uint64_t kBlock = 256;

  // Window bytes of the chunks from each block on.
  std::vector<uint64_t> slot;
  // By areas, less one: see WindowCost; the least from each block on.
  std::array<std::vector<int64_t>, kWeightAreasMax> least_cost;
};

struct SpecSums {
  StateBytes states;               // StateBytesOf
  uint64_t frozen_pool_bytes = 0;  // FrozenPoolBytes
  uint64_t parameter_count = 0;    // ParameterCount
  // By chunk, and one entry behind the last; see HostBytesOf and NvmeBytesOf.
  // Bytes that are not in the pool when chunks from this one on spill.
  std::vector<uint64_t> off_host;
  // Bytes in the pool of the 16-bit weights of chunks from this one on.
  std::vector<uint64_t> weights;
  std::vector<uint64_t> nvme;  // bytes on NVMe when chunks from this one on spill
  WindowSums windows;          // empty where the job has no 16-bit weights
  // By rank; empty where the job has no states on GPUs.
  std::vector<uint64_t> gpu_staging_elements, gpu_share_bytes;
  // Bytes and content of the frozen chunks, each once, in order.
  std::vector<std::pair<uint64_t, ContentHash>> frozen;
};

std::shared_ptr<const SpecSums> MakeSums(const JobSpec& spec);
// The bytes that the sums of a description with so many chunks, and frozen ones besides, take at
// most.
inline uint64_t SumsBytes(uint64_t chunks, uint64_t frozen) {
  const uint64_t blocks = (chunks / WindowSums::kBlock + 1) * (1 + kWeightAreasMax);
  return sizeof(SpecSums) + (3 * (chunks + 1) + blocks + 2 * kRanksMax) * sizeof(uint64_t) +
         frozen * sizeof(std::pair<uint64_t, ContentHash>);
}

// The answers of WeightSlotBytes and WeightsSpilledFor, from the sums of `spec`, which must have
// some.
uint64_t SlotBytesFromSums(const JobSpec& spec, ChunkId first);
WeightSpill WindowFromSums(const JobSpec& spec, ChunkId first_spilled, uint64_t pool_bytes);

}  // namespace tidepool::shm
