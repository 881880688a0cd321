// Encode: a job's description as bytes, for the control socket and for kept memory. Decode
// (shm/spec/decode.h) reads them.
//
// Pure functions, any thread. All numbers are little-endian, as they stand in JobSpec; lists and
// names have their length before them (shm/byte_codec.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shm/spec/job_spec.h"

namespace tidepool::shm {

inline constexpr uint32_t kSpecMagic = 0x4a445054;  // "TPDJ", the first word

std::vector<std::byte> Encode(const JobSpec& spec);
// A 64-bit fingerprint of Encode(spec), by which ranks of one job are compared.
uint64_t Fingerprint(std::span<const std::byte> bytes);

}  // namespace tidepool::shm
