// WeightsFile: a safetensors file of fp32, bf16 or fp16 tensors, read by position. memserver saves
// fp32.
//
// One thread at a time. The file is opened once and read as found at that moment; Open checks its
// header.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/formats/content_hash.h"
#include "base/formats/safetensors.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

// The file of a whole model, in the directory of --save.
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kAdapterFile = "adapter.safetensors";  // adapters over a base
// Metadata of kAdapterFile: HashFile of the base, 64 digits.
inline constexpr const char* kBaseHashKey = "tidepool.base";

// `path` where it is a directory, else the directory of that file.
std::string DirectoryOfWeights(const std::string& path);
// The weights of a whole model: `path`, or kWeightsFile in it where it is a directory.
std::string WholeModelAt(const std::string& path);

// Which file it is, and when it was last changed. While the stamp stays the same, so do the bytes,
// but for a second change within the resolution of the file system's times.
struct FileStamp {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // since 1970; of its bytes, and of anything about it
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

class WeightsFile {
 public:
  // Errors: kFileUnreadable, kSafetensorsBad (the first thing that is wrong, for example a cut
  // end).
  static Result<WeightsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // The value of a metadata key; empty when there is none.
  std::string Metadata(const std::string& key) const;
  // The tensor of this name; null where there is none.
  const SafetensorsEntry* Find(std::string_view name) const;
  // The tensor `name`, which has to be F32, BF16 or F16 of this shape. Errors: kDataBad, naming
  // file, tensor, and what is there instead.
  Result<const SafetensorsEntry*> Expect(const std::string& name,
                                         const std::vector<uint64_t>& dims) const;
  // Values of a tensor that Expect returned, from element `first` on. Errors: kSafetensorsBad (the
  // file was changed or cannot be read).
  Status Read(const SafetensorsEntry& tensor, uint64_t first, std::span<float> values) const;
  // The first bytes of a tensor of this file, as they are. Errors: as Read.
  Status ReadRaw(const SafetensorsEntry& tensor, std::span<std::byte> bytes) const;
  // As it is now; all zeros where the system does not say.
  FileStamp Stamp() const;
  // The hash of all bytes of the file, as `b2sum -l 256` prints it. Errors: kSafetensorsBad.
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

// Adapters say over which bytes they were trained; over others they are of no use. Errors: kDataBad
// (the base is another file), kSafetensorsBad.
Status CheckTrainedOver(const WeightsFile& adapters, const WeightsFile& base);

// Writes the file anew with more metadata; at any moment the file is in the old form or the new
// one. For small files: the tensors pass through memory. Errors: those of WeightsFile,
// kFileWriteFailed.
Status AddMetadata(const std::string& path,
                   const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace tidepool::trainer
