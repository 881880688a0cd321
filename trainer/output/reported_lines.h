// FindReportedLines: how much of a metrics file a run that goes on keeps.
//
// Any thread; reads by pread from the end backwards, in blocks, so that neither time nor memory
// grows with what lies in front.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tidepool::trainer {

// What of the file stays.
struct ReportedLines {
  // Bytes to keep from the start of the file; the line of step `last` is the last one in them.
  uint64_t bytes = 0;
  uint64_t last = 0;       // step of the last line that is kept; 0: none names one
  uint64_t looked_at = 0;  // bytes of the file that were read
};

// Finds the last whole line of `fd` that names a step up to `sealed` ("{\"step\":12,...}" and a
// newline). What lies behind it is of later steps, cut off, or foreign; what lies in front was kept
// by earlier writers and is not read. A device holds no line.
// Errors: kFileUnreadable (the system refuses to read; nothing must be cut then).
Result<ReportedLines> FindReportedLines(int fd, uint64_t sealed);

}  // namespace tidepool::trainer
