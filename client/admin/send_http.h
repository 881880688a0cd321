// SendHttp, SendHttpAtOnce: send requests over a Unix socket, with a time limit.
//
// One thread; blocks. The one door to Boost.Beast in this room is send_http.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

// An answer.
struct HttpReply {
  unsigned status = 0;
  std::string content_type;
  std::string body;
};

// A request.
struct HttpQuestion {
  std::string method;  // sent as given, so that `memctl api` can show the answer to any
  std::string target;
  std::string body = {};  // JSON; empty: none
};

// Errors: kNoServer (nothing listens), kWaitTimeout, kServerGone (closed in mid-answer),
// kHandshakeBad (not HTTP), kUsageError (method).
Result<HttpReply> SendHttp(const std::string& socket_path, const HttpQuestion& question,
                           int64_t timeout_ns);
// Several requests (at least one) over one connection, sent together: the server wakes up once for
// all of them. Returns the answers in order; fewer if the server closes behind one, which then says
// why. Errors: as SendHttp.
Result<std::vector<HttpReply>> SendHttpAtOnce(const std::string& socket_path,
                                              const std::vector<HttpQuestion>& questions,
                                              int64_t timeout_ns);

}  // namespace tidepool::client
