// AskLayout: asks a memserver for the parameter layout of a job over its admin socket, so no
// session is needed.
//
// One thread; blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

// A held job's layout.
struct HeldLayout {
  std::vector<std::string> parameters;  // trained ones, in layout order
  uint64_t rank_rcache_bytes = 0;       // per rank, as requested by the job
};

// `socket_dir`: empty: the default directory. Errors: those of SendHttp, the server's answer,
// kHandshakeBad (another release), kAdminNotFound (no such job).
Result<HeldLayout> AskLayout(const std::string& socket_dir, const std::string& job,
                             int64_t timeout_ns);

}  // namespace tidepool::client
