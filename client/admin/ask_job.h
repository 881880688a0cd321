// AskJob: what a memserver says of a job: by its admin socket, so no session is needed.
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
  std::optional<JobView> job;       // that it holds
  std::optional<LostJobView> lost;  // the job of that name and this user whose states it gave up
};

// `socket_dir`: empty: the default place. Errors: those of SendHttp, what the server answered,
// kHandshakeBad (another release).
Result<JobWord> AskJob(const std::string& socket_dir, const std::string& name, int64_t timeout_ns);

}  // namespace tidepool::client
