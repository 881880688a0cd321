// StepLogWriter: appends the steps of a run to its log (step_log.h), for one writer of a folder.
//
// One thread appends; one other may call Sync meanwhile, so that the steps that come while the
// drive works share the next sync. A step is safe when a Sync that began after EndStep has
// returned. After a failed write nothing more may be appended: what was synced stays readable.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/checkpoint/checkpoint_files.h"
#include "base/checkpoint/step_log.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool {

class StepLogWriter {
 public:
  struct Parts {
    std::string folder;     // made if it does not exist
    uint64_t run = 0;       // not 0; of no other writer
    uint64_t previous = 0;  // the run whose log ends at `base`; 0: none
    uint64_t base = 0;      // the version that the first step follows
    uint32_t model = 0;     // check of the parameters; a reader's must be equal
    FileFault fault = nullptr;
  };
  // Makes the first segment and syncs it. Errors: kSaveFailed (which file, and the system's
  // reason), as for all below.
  static Result<std::unique_ptr<StepLogWriter>> Begin(Parts parts);

  // Appends gradients of consecutive parameters, from byte `first` of `parameter` on.
  Status Gradients(uint32_t parameter, uint64_t first, std::span<const std::byte> bytes);
  // Completes a step: gradients came since the one before, unless it was skipped. Errors: also
  // kDataBad (not the step after the one before).
  Status EndStep(const LoggedStep& step);
  // Syncs everything, and begins the segment behind the last step.
  Status Roll();
  // Syncs what was appended before the call.
  Status Sync();
  // Syncs everything, and notes that the log ends here.
  Status End();
  // Removes the segments that nobody needs when a checkpoint of this run at version `whole` is
  // whole: this run's before it, and all of other runs. Errors: also kFileUnreadable.
  Status Trim(uint64_t whole);

  uint64_t appended() const { return appended_.load(std::memory_order_acquire); }  // versions
  // The version that the current segment's steps follow.
  uint64_t segment_base() const { return segment_base_.load(std::memory_order_acquire); }
  uint64_t synced() const { return synced_.load(std::memory_order_acquire); }
  uint64_t bytes() const { return bytes_; }  // written by this object

 private:
  struct File {
    std::string path;
    UniqueFd fd;
  };
  explicit StepLogWriter(Parts parts)
      : parts_(std::move(parts)), appended_(parts_.base), synced_(parts_.base) {}
  Status NewSegment();
  Status Append(StepFrame frame, std::span<const std::byte> payload);
  Status Write(std::span<const std::byte> bytes, uint64_t at);
  Status SyncDirectory(const std::string& path);
  Status Failed(const std::string& path, int error) const;
  int Fault(const char* operation, const std::string& path) const;
  std::shared_ptr<const File> current();

  const Parts parts_;
  std::mutex mutex_;  // of file_
  std::shared_ptr<const File> file_;
  uint64_t previous_ = 0;    // for the next segment's head
  uint64_t at_ = 0;          // end of the segment
  uint64_t step_bytes_ = 0;  // gradients of the open step
  uint64_t bytes_ = 0;
  std::atomic<uint64_t> appended_, synced_, segment_base_{0};
};

}  // namespace tidepool
