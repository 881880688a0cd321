// Encode: writes a job's description as bytes, for the control socket and for kept memory. Decode
// (shm/spec/decode.h) reads them.
//
// Pure functions, any thread. All numbers are little-endian, in the order of JobSpec; lists and
// names are preceded by their length (shm/byte_codec.h). Behind the frozen chunks follow, if they
// are set: states_on_gpu; and then, if a chunk does not have the job's dtype, f32_chunks and a byte
// for the type of each frozen chunk. A job of one dtype is encoded as before version 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shm/byte_codec.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// The first protocol version in which chunks may have types of their own.
inline constexpr uint32_t kAbiDTypes = 8;
inline constexpr uint32_t kSpecMagic = 0x4a445054;  // "TPDJ", the first word

std::vector<std::byte> Encode(const JobSpec& spec);
// Bytes of the encoding; from the sums of `spec` if it has some.
uint64_t EncodedBytesOf(const JobSpec& spec);
// The same bytes in parts, for a thread that may not spend the time for all of them at once. One
// thread.
class SpecEncoder {
 public:
  // The description outlives it.
  explicit SpecEncoder(const JobSpec* spec) : spec_(spec) {}
  // The next bytes, about `bytes_max`; everything other than chunks and parameters comes in one
  // part. Empty when none are left.
  std::vector<std::byte> Next(uint64_t bytes_max);

 private:
  enum class Part : uint8_t { kHead, kChunks, kParameters, kTail, kNone };
  bool PutNext(ByteWriter* out);

  const JobSpec* const spec_;
  Part part_ = Part::kHead;
  size_t next_ = 0;  // in that part
};
// A 64-bit fingerprint of Encode(spec), used to compare ranks of one job.
uint64_t Fingerprint(std::span<const std::byte> bytes);

}  // namespace tidepool::shm
