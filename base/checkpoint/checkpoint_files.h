// CheckpointFiles: writing a checkpoint so that it is there whole or not at all, also through a
// power cut; and what lies in a folder of checkpoints.
//
// A folder holds step-00000300, step-00000600, ...: a directory each, with the files of
// manifest.h and whatever else describes the model. One that is being written is called
// step-00000300.partial, and gets its name when all of it is on the disk. One writer of a folder at
// a time; any number of readers. Any thread.
//
// A power cut keeps of a file what was synced, and of a directory the entries that were there when
// it was synced last; others may be there or not. So: every file is synced, then its directory,
// then MANIFEST is written and synced, and the directory again; then it is renamed, and the folder
// synced.
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

// What a test stands between the writer and the disk: called before each operation ("create",
// "write", "sync", "syncdir", "rename", "remove") on a path; an errno other than 0 is what the
// operation fails with. Null: nothing.
using FileFault = std::function<int(const char* operation, const std::string& path)>;

// "step-00000300", and back; nothing: another name.
std::string CheckpointName(uint64_t version);
std::optional<uint64_t> VersionOfName(const std::string& name);

// One tensor to be written.
struct CheckpointTensor {
  std::string file;  // kMasterFile or kMomentsFile
  std::string name;
  std::string dtype;  // as safetensors names it
  std::vector<uint64_t> shape;
};

// One checkpoint on its way to the disk.
class CheckpointWriter {
 public:
  // Begins in `partial`, a directory that is there, with all space of the files taken. Errors:
  // kSaveFailed (which file, and the system's word), as of all below.
  static Result<CheckpointWriter> Begin(const std::string& partial,
                                        const std::vector<CheckpointTensor>& tensors,
                                        FileFault fault = nullptr);
  // The next bytes of a tensor, from its start on.
  Status Write(const std::string& file, const std::string& name, std::span<const std::byte> bytes);
  // Everything is there: gives `partial` its name in the folder. One of that step that is there
  // stays until then. Errors: also kDataBad, a tensor that is not complete.
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
  Status state;  // ok: its manifest is whole, and its files have the lengths that it says
};
// In order of their versions. A folder that is not there has none. Errors: kFileUnreadable.
Result<std::vector<FoundCheckpoint>> FindCheckpoints(const std::string& folder);
// The manifest of the checkpoint at `path`, with the lengths of its files looked at. Errors:
// kCheckpointBad, naming the file; kFileUnreadable.
Result<Manifest> OpenCheckpoint(const std::string& path);
// Reads all of it. Errors: kCheckpointBad, naming file and tensor; kFileUnreadable.
Status VerifyCheckpoint(const std::string& path);
// All but the newest `keep` whole ones, and what is not whole and older than these. Requires
// keep > 0. Errors: kFileUnreadable.
Result<std::vector<std::string>> CheckpointsBeyond(const std::string& folder, uint64_t keep);
// Removes them, and returns what was removed. Errors: also kSaveFailed.
Result<std::vector<std::string>> PruneCheckpoints(const std::string& folder, uint64_t keep);

// What killed writers have left. Call before one begins. Errors: kSaveFailed.
Status RemovePartials(const std::string& folder);

}  // namespace tidepool
