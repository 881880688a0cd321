// HttpGet: one GET request over a Unix socket, with a time limit.
//
// One thread; blocks. The one door to Boost.Beast in this room is http_get.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::client {

struct HttpReply {
  unsigned status = 0;
  std::string content_type;
  std::string body;
};

// `method` is sent as it stands, so that `memctl api` can show what a server says to others than GET.
// Errors: kNoServer (nothing listens), kWaitTimeout, kServerGone (closed in mid-answer), kHandshakeBad (not HTTP), kUsageError (method).
Result<HttpReply> HttpGet(const std::string& socket_path, const std::string& method, const std::string& target, int64_t timeout_ns);

}  // namespace tidepool::client
