// NonblockingStderr: stderr for a process that must not wait for its reader, such as a full pipe or
// a stopped terminal.
//
// One thread at a time. Other processes with the same stderr are not affected: the shared open file
// stays blocking.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/unique_fd.h"

namespace tidepool {

class NonblockingStderr {
 public:
  NonblockingStderr();

  // True if the line was written, cut to what a pipe takes at once (4 KiB). Otherwise it was
  // dropped, and counted.
  bool Write(std::string_view line);
  uint64_t dropped() const { return dropped_; }
  void ForgetDropped() { dropped_ = 0; }
  void CountDropped(uint64_t lines) { dropped_ += lines; }

 private:
  enum class Kind { kOwn, kSocket, kFile, kShared };
  bool WriteOnce(std::string_view bytes) const;

  UniqueFd own_;  // with kOwn
  Kind kind_ = Kind::kShared;
  uint64_t dropped_ = 0;
};

}  // namespace tidepool
