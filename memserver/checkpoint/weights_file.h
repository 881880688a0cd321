// WeightsFile: fp32 tensors written as one safetensors file that appears under its name whole or
// not at all.
//
// One thread at a time; blocks for as long as the disk takes. The file is written beside its final
// place as NAME.tmp-<16 hex digits>, flushed to the disk, renamed, and the directory flushed: a
// former file of that name stays whole until the new one is complete, even through a power cut. The
// temporary file is removed on every failure that this process survives. Mode of the file: 0644
// less the umask. It is the user's own result, like the files of other programs, and holds no
// secret of the daemon; a user who wants it private sets the umask or the directory's mode.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/checkpoint/save_request.h"

namespace tidepool::memserver {

// Bytes; NAME.tmp-... must fit into the 255 of a file name.
inline constexpr size_t kSaveNameMax = 200;

// When to give a save up. Checked between pieces of 4 MiB: a system call that hangs in the kernel
// is not interrupted.
struct SaveLimits {
  const Clock* clock = nullptr;
  int64_t deadline_ns = 0;                  // by `clock`
  const std::atomic<bool>* stop = nullptr;  // set when the daemon ends
};

// Writes `request`. Errors: kSaveFailed (name is no single path component, not a directory, no
// space, no permission, deadline, stop).
Status WriteWeightsFile(const SaveRequest& request, const SaveLimits& limits);

// Reads values of `tensor` from `first` on, wherever they lie: `values.size()` of them. Errors:
// those of `tensor.read`.
Status ReadValues(const SavedTensor& tensor, uint64_t first, std::span<float> values);

// Why `name` may not be used as a file name; empty if it may.
std::string WhyNotFileName(const std::string& name);

}  // namespace tidepool::memserver
