// SpecSums: what a job's states take, added up once where its description is decoded, so that
// nobody who admits it goes through its
// chunks again.
//
// Made by Decode, on the thread that decodes; never changed. Functions of shm/spec/job_spec.h and
// shm/spec/state_footprint.h use it where a description has one, and else add up anew: the sums are
// the same. Memory: three words a chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shm/spec/job_spec.h"

namespace tidepool::shm {

struct SpecSums {
  StateBytes states;               // StateBytesOf
  uint64_t frozen_pool_bytes = 0;  // FrozenPoolBytes
  // By chunk, and one entry behind the last; see HostBytesOf and NvmeBytesOf.
  // Bytes that are not in the pool when chunks from this one on spill.
  std::vector<uint64_t> off_host;
  // Bytes in the pool of the 16-bit weights of chunks from this one on.
  std::vector<uint64_t> weights;
  std::vector<uint64_t> nvme;  // bytes on NVMe when chunks from this one on spill
};

std::shared_ptr<const SpecSums> MakeSums(const JobSpec& spec);
// The bytes that the sums of a description with so many chunks take.
inline uint64_t SumsBytes(uint64_t chunks) {
  return sizeof(SpecSums) + 3 * (chunks + 1) * sizeof(uint64_t);
}

}  // namespace tidepool::shm
