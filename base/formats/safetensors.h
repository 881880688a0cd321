// The safetensors file format: encodes and decodes header text, and checks every number of a
// foreign file before it is used.
//
// Any thread; pure functions of bytes, no file is opened here. The layout of a file:
//
//   bytes 0..7      N: length of the header, unsigned 64-bit little-endian
//   bytes 8..8+N    JSON: {"__metadata__": {key: text},
//                          name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
//                          ...},
//                   padded with spaces so that 8+N is a multiple of 8
//   from 8+N on     the tensors' bytes, little-endian, row-major; offsets count from here
//
// A header that DecodeSafetensorsHeader returns satisfies:
//  1. the limits below hold; names are unique and not "__metadata__";
//  2. end - begin = product of shape x bytes of dtype, computed without overflow;
//  3. the tensors, which stand in order of begin, cover the data without gap or overlap, to the
//     last byte of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool {

// Limits of what is accepted, checked before memory is taken.
inline constexpr uint64_t kSafetensorsHeaderMax = 16ull << 20;  // bytes
inline constexpr size_t kSafetensorsTensorsMax = 100'000;
// Bytes of one name, metadata key or metadata value.
inline constexpr size_t kSafetensorsTextMax = 64 * 1024;
inline constexpr size_t kSafetensorsDimsMax = 16;
inline constexpr size_t kSafetensorsPrefixBytes = 8;  // the length word

// One tensor of a file: its name, type, shape and place.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;            // "F32", "BF16", ...: as in the file
  std::vector<uint64_t> shape;  // row-major; empty for a scalar
  // Bytes, from the start of the data; EncodeSafetensorsHeader computes them.
  uint64_t begin = 0, end = 0;
};

// The contents of a header: tensors in order of begin, and free text.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Bytes of one element of `dtype`, a safetensors type name; 0 for an unknown one.
uint64_t SafetensorsElementBytes(std::string_view dtype);

// Encodes the start of a file (length word, JSON, padding) for tensors laid out consecutively in
// the given order; writes their begin and end into `header`. Errors: kSafetensorsBad (a limit, a
// duplicate name, an unknown dtype).
Result<std::string> EncodeSafetensorsHeader(SafetensorsHeader* header);

// Length of the JSON text that follows the first 8 bytes, checked against the limit and the file.
// Errors: kSafetensorsBad.
Result<uint64_t> SafetensorsHeaderLength(std::span<const std::byte, kSafetensorsPrefixBytes> prefix,
                                         uint64_t file_bytes);
// Decodes the header of a file whose data part has `data_bytes`. Errors: kSafetensorsBad, with the
// first error found.
Result<SafetensorsHeader> DecodeSafetensorsHeader(std::string_view json, uint64_t data_bytes);
// Both steps for a whole file in memory; `data_begin` receives the offset of the data. Errors:
// kSafetensorsBad.
Result<SafetensorsHeader> DecodeSafetensors(std::span<const std::byte> file, uint64_t* data_begin);

}  // namespace tidepool
