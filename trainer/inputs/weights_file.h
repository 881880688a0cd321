// WeightsFile: a safetensors file of fp32, bf16 or fp16 tensors with random access. memserver saves
// fp32.
//
// One thread at a time. The file is opened once, and its header is read and checked by Open.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checkpoint/manifest.h"
#include "base/formats/content_hash.h"
#include "base/formats/safetensors.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

// The file of a whole model, in the directory of --save.
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kAdapterFile = "adapter.safetensors";  // adapters over a base

// `path` if it is a directory, else its directory.
std::string DirectoryOfWeights(const std::string& path);
// The weights of a whole model: `path`, or kWeightsFile in it if it is a directory.
std::string WholeModelAt(const std::string& path);

// Identifies a file and its last change. While the stamp is equal, so are the bytes, except for a
// second change within the resolution of the file system's times.
struct FileStamp {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // since 1970; of its content, and of its inode
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

class WeightsFile {
 public:
  // Errors: kFileUnreadable, kSafetensorsBad (the first error, for example a truncated end).
  static Result<WeightsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // The value of a metadata key; empty if there is none.
  std::string Metadata(const std::string& key) const;
  // The tensor of this name; null if there is none.
  const SafetensorsEntry* Find(std::string_view name) const;
  // The tensor `name`, which must be F32, BF16 or F16 with this shape. Errors: kDataBad, naming
  // file, tensor and the actual type and shape.
  Result<const SafetensorsEntry*> Expect(const std::string& name,
                                         const std::vector<uint64_t>& dims) const;
  // Reads values of a tensor from Expect, from element `first` on. Errors: kSafetensorsBad (the
  // file has changed or cannot be read).
  Status Read(const SafetensorsEntry& tensor, uint64_t first, std::span<float> values) const;
  // Reads the first bytes of a tensor of this file, unconverted. Errors: as Read.
  Status ReadRaw(const SafetensorsEntry& tensor, std::span<std::byte> bytes) const;
  // The present stamp; all zeros on a system error.
  FileStamp Stamp() const;
  // The hash of the whole file, as printed by `b2sum -l 256`. Errors: kSafetensorsBad.
  Result<ContentHash> HashFile() const;

 private:
  WeightsFile(std::string path, UniqueFd fd, uint64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}
  Status ReadHeader();
  Status ReadBytes(uint64_t offset, void* out, uint64_t bytes) const;

  std::string path_;
  UniqueFd fd_;
  uint64_t bytes_ = 0, data_begin_ = 0;
  SafetensorsHeader header_;
};

// Checks that `base` has the hash named in the adapters: over other bytes they are useless. Errors:
// kDataBad (the base is another file), kSafetensorsBad.
Status CheckTrainedOver(const WeightsFile& adapters, const WeightsFile& base);

// Rewrites the file with additional metadata, atomically. For small files: the tensors pass through
// memory. Errors: those of WeightsFile, kFileWriteFailed.
Status AddMetadata(const std::string& path,
                   const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace tidepool::trainer
