// Manifest: describes a checkpoint directory, in its file MANIFEST, which is written last: the
// step, and the lengths and checksums of every file.
//
// Any thread; values and pure functions of text. The text comes from a disk: ReadManifest accepts
// any bytes. One line per entry, fields separated by one blank:
//
//   tidepool-checkpoint 1
//   version 300                    likewise optimizer_step, data_cursor, random_state,
//                                  scaler_steps, and loss_scale as the bits of its float
//   file BYTES HEAD CRC NAME       CRC: CRC-32C of its first HEAD bytes, in hexadecimal
//   tensor CRC FILE NAME           of all bytes of a tensor of a safetensors file
//   end CRC                        of all lines before this one
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tidepool {

inline constexpr const char* kManifestFile = "MANIFEST";
inline constexpr const char* kMasterFile = "model.safetensors";      // fp32 masters, by parameter
inline constexpr const char* kAdaptersFile = "adapter.safetensors";  // of adapters, instead
// Metadata of kAdaptersFile: the hash of the base's file, 64 digits.
inline constexpr const char* kBaseHashKey = "tidepool.base";
inline constexpr const char* kMomentsFile = "optimizer.safetensors";  // PARAMETER.exp_avg, ...
inline constexpr const char* kFirstMoment = ".exp_avg";
inline constexpr const char* kSecondMoment = ".exp_avg_sq";
// The scales of 8-bit moments: fp32, one per 32 elements of a parameter.
inline constexpr const char* kFirstScales = ".exp_avg_scale";
inline constexpr const char* kSecondScales = ".exp_avg_sq_scale";
// The name suffix of a parameter's tensor of a plane, numbered as in puts (shm/messages.h).
const char* SuffixOfPlane(uint32_t plane);
inline constexpr uint64_t kManifestBytesMax = 64ull << 20;

// The step whose states a checkpoint holds.
struct CheckpointStep {
  uint64_t version = 0, optimizer_step = 0, data_cursor = 0, random_state = 0;
  uint32_t scaler_steps = 0;
  float loss_scale = 1;
  friend bool operator==(const CheckpointStep&, const CheckpointStep&) = default;
};

// A file of the directory.
struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t head = 0;  // the checksum covers the first `head` bytes
  uint32_t crc = 0;
};
// A tensor of a safetensors file.
struct ManifestTensor {
  std::string file, name;
  uint32_t crc = 0;
};
struct Manifest {
  CheckpointStep step;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

// The text of the file.
std::string TextOf(const Manifest& manifest);
// Parses the text. Errors: kCheckpointBad (the first error, with its line).
Result<Manifest> ReadManifest(std::string_view text);

}  // namespace tidepool
