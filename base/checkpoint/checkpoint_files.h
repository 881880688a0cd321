// CheckpointFiles: writes a checkpoint so that it exists whole or not at all, even after a power
// cut; and lists a folder of checkpoints.
//
// A folder holds step-00000300, step-00000600, ...: a directory each, with the files of manifest.h
// and any other files that describe the model. One that is being written is called
// step-00000300.partial, and gets its final name when all of it is on the disk. One writer of a
// folder at a time; any number of readers. Any thread.
//
// After a power cut a file has at least what was synced, and a directory the entries of its last
// sync; later changes may be lost. So: every file is synced, then its directory, then MANIFEST is
// written and synced, and the directory again; then it is renamed, and the folder synced.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checkpoint/manifest.h"
#include "base/formats/safetensors.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool {

// A test's hook between the writer and the disk: called before each operation ("create", "write",
// "sync", "syncdir", "rename", "remove") on a path; the operation fails with the errno that it
// returns, unless that is 0. Null: none.
using FileFault = std::function<int(const char* operation, const std::string& path)>;

// "step-00000300", and the reverse; nothing: another name.
std::string CheckpointName(uint64_t version);
std::optional<uint64_t> VersionOfName(const std::string& name);

// One tensor to write.
struct CheckpointTensor {
  std::string file;  // kMasterFile, kAdaptersFile or kMomentsFile
  std::string name;
  std::string dtype;  // as safetensors names it
  std::vector<uint64_t> shape;
};

// Writes one checkpoint.
class CheckpointWriter {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  // Begins in `partial`, an existing directory: allocates the space of the files and writes
  // `metadata` into their headers. Errors: kSaveFailed (which file, and the system's reason), as
  // for all below.
  static Result<CheckpointWriter> Begin(const std::string& partial,
                                        const std::vector<CheckpointTensor>& tensors,
                                        FileFault fault = nullptr, const Metadata& metadata = {});
  // Writes the next bytes of a tensor, from its start on.
  Status Write(const std::string& file, const std::string& name, std::span<const std::byte> bytes);
  // Completes it: gives `partial` its name in the folder. An existing checkpoint of that step stays
  // until then. Errors: also kDataBad, a tensor that is not complete.
  Status Commit(const CheckpointStep& step);

 private:
  struct Target {
    std::string file;
    uint64_t at = 0, end = 0;  // in the file
    uint32_t crc = 0;
  };
  struct Open {
    UniqueFd fd;
    std::string head;
    uint64_t bytes = 0;
  };
  CheckpointWriter(std::string partial, FileFault fault)
      : partial_(std::move(partial)), fault_(std::move(fault)) {}
  int Fault(const char* operation, const std::string& path) const;
  Status Failed(const std::string& path, int error) const;
  Status Create(const std::string& file, std::string head, uint64_t bytes);
  Status WriteAll(int fd, const std::string& path, std::span<const std::byte> bytes, uint64_t at);
  Status SyncFile(const std::string& file);
  Status SyncDirectory(const std::string& path);
  Result<Manifest> Describe(const CheckpointStep& step);

  std::string partial_;
  FileFault fault_;
  std::map<std::string, Open> open_;
  std::map<std::string, Target> targets_;  // by file, a slash, and the tensor's name
  std::vector<ManifestTensor> order_;
};

// A checkpoint in a folder.
struct FoundCheckpoint {
  std::string path;
  uint64_t version = 0;
  Status state;  // ok: its manifest is whole, and its files have the listed lengths
};
// The folder's checkpoints by version; none if the folder does not exist. Errors: kFileUnreadable.
Result<std::vector<FoundCheckpoint>> FindCheckpoints(const std::string& folder);
// Reads the manifest of the checkpoint at `path`, and checks the lengths of its files. Errors:
// kCheckpointBad, naming the file; kFileUnreadable.
Result<Manifest> OpenCheckpoint(const std::string& path);
// Reads and checks the whole checkpoint. Errors: kCheckpointBad, naming file and tensor;
// kFileUnreadable.
Status VerifyCheckpoint(const std::string& path);
// All whole checkpoints except the newest `keep`, and damaged ones older than these. Requires keep
// > 0. Errors: kFileUnreadable.
Result<std::vector<std::string>> CheckpointsBeyond(const std::string& folder, uint64_t keep);
// Removes them, and returns what it removed. Errors: also kSaveFailed.
Result<std::vector<std::string>> PruneCheckpoints(const std::string& folder, uint64_t keep);

// The directory of a checkpoint that is being written. Its writer holds a lock (flock) on it until
// this object and the copies in forked processes are gone. Move only; one thread.
class PartialCheckpoint {
 public:
  PartialCheckpoint() = default;
  // Makes and locks FOLDER/NAME.partial. Errors: kSaveFailed (also if another writer has it).
  static Result<PartialCheckpoint> Make(const std::string& folder, const std::string& name);
  const std::string& path() const { return path_; }
  // Gives the checkpoint up: removes the directory with its files.
  void Remove();

 private:
  std::string path_;
  UniqueFd lock_;
};

// Removes the directories that killed writers have left; those of running writers stay. Call
// before a writer begins. Errors: kSaveFailed.
Status RemovePartials(const std::string& folder);

}  // namespace tidepool
