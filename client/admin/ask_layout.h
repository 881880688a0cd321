// AskLayout: how the parameters of a job lie that a memserver holds: by its admin socket, so no
// session is needed.
//
// One thread; blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

// What the server holds of a job.
struct HeldLayout {
  std::vector<std::string> parameters;  // trained ones, in the order in which they lie
  uint64_t rank_rcache_bytes = 0;       // that the job asks for, for each rank
};

// `socket_dir`: empty: the default place. Errors: those of SendHttp, what the server answered,
// kHandshakeBad (another release), kAdminNotFound (no such job).
Result<HeldLayout> AskLayout(const std::string& socket_dir, const std::string& job,
                             int64_t timeout_ns);

}  // namespace tidepool::client
