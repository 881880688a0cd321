// FindReportedLines: how much of a metrics file a resumed run keeps.
//
// Any thread; reads blocks backwards from the end with pread, so that time and memory do not grow
// with the earlier part.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tidepool::trainer {

// The part of the file to keep.
struct ReportedLines {
  // Bytes to keep from the start of the file; they end with the line of step `last`.
  uint64_t bytes = 0;
  uint64_t last = 0;       // step of the last line to keep; 0: no line has one
  uint64_t looked_at = 0;  // bytes of the file that were read
};

// Finds the last complete line of `fd` with a step up to `sealed` ("{\"step\":12,...}" and a
// newline). Data after it are of later steps, truncated, or foreign; data before it were kept by
// earlier writers and are not read. A device has no lines. Errors: kFileUnreadable (a read failed;
// nothing may be cut then).
Result<ReportedLines> FindReportedLines(int fd, uint64_t sealed);

}  // namespace tidepool::trainer
