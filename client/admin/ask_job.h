// AskJob: asks a memserver about a job over its admin socket, so no session is needed.
//
// One thread; blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "client/admin/views.h"

namespace tidepool::client {

// The answer.
struct JobWord {
  std::optional<JobView> job;       // if the server holds it
  std::optional<LostJobView> lost;  // if it dropped the states of this user's job of that name
};

// `socket_dir`: empty: the default directory. Errors: those of SendHttp, the server's answer,
// kHandshakeBad (another release).
Result<JobWord> AskJob(const std::string& socket_dir, const std::string& name, int64_t timeout_ns);

}  // namespace tidepool::client
