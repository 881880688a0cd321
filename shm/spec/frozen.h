// Frozen: the frozen chunks in a job's specification, and the host-pool bytes that they take.
//
// Pure functions, any thread. The pool holds one copy of a frozen chunk for all jobs of one user
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
// Pool bytes of a chunk of `bytes`.
inline uint64_t FrozenExtentBytes(uint64_t bytes) {
  return kPageBytes + RoundUp(bytes, kPageBytes);
}
// Pool bytes of all frozen chunks of the job; a chunk listed twice counts once.
uint64_t FrozenPoolBytes(const JobSpec& spec);

// Checks the rules for frozen chunks alone. Errors: kJobSpecBad.
Status CheckFrozen(const JobSpec& spec);
// Writes everything except the types, which a job has if one is not its dtype (shm/spec/encode.h).
void PutFrozen(const std::vector<FrozenChunkSpec>& frozen, ByteWriter* out);
// Reads the chunks, with `dtype` as their type. False: the bytes are truncated, or hold too many.
bool GetFrozen(ByteReader* in, DType dtype, std::vector<FrozenChunkSpec>* frozen);

}  // namespace tidepool::shm
