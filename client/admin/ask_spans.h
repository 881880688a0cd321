// AskSpans: has a memserver record when it copies and updates for a job, and asks for the record,
// over its admin socket.
//
// One thread; blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

// Something that memserver did for a job.
struct ServerSpan {
  std::string what;  // "fetch", "update", ... (docs/admin_api.md lists them)
  // For which rank it was done, or which worker or NVMe directory did it: one of them.
  std::optional<uint64_t> rank, worker, drive;
  uint64_t chunk = 0, piece = 0;
  int64_t begin_ns = 0, end_ns = 0;
};

// The answer of the server. Times are of its clock.
struct ServerSpans {
  bool recording = false;  // false: nobody has it record the job, or it was restarted since
  int64_t now_ns = 0;      // when it answered
  std::vector<ServerSpan> spans = {};
};

// `socket_dir`: empty: the default directory. Errors of both: those of SendHttp, the server's
// answer, kHandshakeBad (another release).
Status RecordSpans(const std::string& socket_dir, const std::string& job, bool record,
                   int64_t timeout_ns);
// Spans that ended at or after `since_ns`.
Result<ServerSpans> AskSpans(const std::string& socket_dir, const std::string& job,
                             int64_t since_ns, int64_t timeout_ns);

}  // namespace tidepool::client
