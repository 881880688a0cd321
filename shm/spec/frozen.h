// Frozen: the frozen chunks of a job in its specification, and what they take of the host pool.
//
// Pure functions, any thread. One copy of a frozen chunk lies in the pool for all jobs of one user
// that list it, behind a page that names it (memserver/residency/frozen_table.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "shm/byte_codec.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// Bytes of the chunk's content.
inline uint64_t FrozenBytes(const FrozenChunkSpec& chunk) {
  return chunk.elements * BytesOf(chunk.dtype);
}
// Bytes of the pool that a chunk of `bytes` takes.
inline uint64_t FrozenExtentBytes(uint64_t bytes) {
  return kPageBytes + RoundUp(bytes, kPageBytes);
}
// Bytes of the pool that all frozen chunks of the job take; one that it lists twice counts once.
uint64_t FrozenPoolBytes(const JobSpec& spec);

// The rules for frozen chunks alone. Errors: kJobSpecBad.
Status CheckFrozen(const JobSpec& spec);
// All but the types, which a job has where one is not its dtype (shm/spec/encode.h).
void PutFrozen(const std::vector<FrozenChunkSpec>& frozen, ByteWriter* out);
// The chunks with `dtype` for a type. False: the bytes are cut off, or hold more than there may be.
bool GetFrozen(ByteReader* in, DType dtype, std::vector<FrozenChunkSpec>* frozen);

}  // namespace tidepool::shm
