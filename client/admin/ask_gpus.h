// AskGpus: asks a memserver about the GPUs that it has opened, over its admin socket, so no session
// is needed.
//
// One thread; blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/admin/views.h"

namespace tidepool::client {

// `socket_dir`: empty: the default directory. Errors: those of SendHttp, the server's answer,
// kHandshakeBad (another release).
Result<std::vector<GpuView>> AskGpus(const std::string& socket_dir, int64_t timeout_ns);

}  // namespace tidepool::client
