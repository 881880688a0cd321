// SlotStore: the jobs' ranges in one directory, and the manifest that makes reservations and
// commits durable.
//
// One thread (the serve loop); no call blocks. Changes are made in memory at once; they are on disk
// when durable_changes() has reached the value of changes() after the change. The order of a commit
// (a crash at any instant leaves one whole generation):
//   1. flush the data file       so that every piece answered before is on the medium
//   2. write the manifest        in the next generation, to the file that does not hold the newest
//                                whole one
//   3. flush that file
// A failed flush is never repeated: the directory is poisoned, and no later commit is trusted (the
// file may have lost any data).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "nvme/manifest.h"
#include "nvme/transfer.h"

namespace tidepool::nvme {

// The indices of a directory's files in its IoQueue, and the tag of its transfers.
struct StoreFiles {
  uint32_t data = 0;
  uint32_t manifests[2] = {1, 2};
  uint64_t tag = 0;
};

class SlotStore {
 public:
  // `buffer`: kManifestBytes of whole pages, only this store's.
  SlotStore(Manifest manifest, const StoreFiles& files, TransferQueue* transfers,
            std::span<std::byte> buffer);

  // Reserves a range of the data file; nothing if there is no gap. `place`: of this directory in
  // the job's list.
  std::optional<uint64_t> Reserve(uint64_t job, uint64_t bytes, uint64_t place = 0);
  // All pieces of `epoch` were confirmed as written. Until this change is durable, no piece of the
  // epoch committed before may be overwritten, since a crash may return to it.
  void Commit(uint64_t job, uint64_t epoch);
  void Remove(uint64_t job);

  // Advances the pending commit; true if something was begun. Call it while dirty() and after End.
  bool Progress();
  // A transfer with the store's tag has ended.
  void End(const TransferDone& done);
  // Stops waiting for its transfer, like a failed flush.
  void GiveUp(int error);

  uint64_t changes() const { return changes_; }
  uint64_t durable_changes() const { return durable_; }
  // True if a change has not reached the disk yet, and still may.
  bool dirty() const { return durable_ < changes_ && !poisoned_; }
  // True while the system has a transfer of it.
  bool busy() const { return out_; }
  bool poisoned() const { return poisoned_; }
  int poison_error() const { return error_; }
  const Manifest& manifest() const { return manifest_; }
  const StoreFiles& files() const { return files_; }
  uint64_t free_bytes() const { return manifest_.capacity - manifest_.used_bytes(); }

 private:
  enum class Step { kIdle, kFlushData, kWrite, kFlushManifest };
  void Begin(Step step);

  Manifest manifest_;
  const StoreFiles files_;
  TransferQueue* const transfers_;
  const std::span<std::byte> buffer_;
  Step step_ = Step::kIdle;
  bool out_ = false;  // the system has a transfer of this step
  uint64_t changes_ = 0;
  uint64_t writing_ = 0;  // value of changes() being written
  uint64_t durable_ = 0;  // value of changes() that is durable
  bool poisoned_ = false;
  int error_ = 0;
};

}  // namespace tidepool::nvme
