// AdminAnswer: the answer to a request on the admin socket, and problem documents.
//
// Any thread; a value type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace tidepool::memserver {

struct AdminAnswer {
  unsigned status = 200;                          // of HTTP
  const char* content_type = "application/json";  // or application/problem+json
  std::string body;
  std::string allow = {};  // value of the Allow header, empty for none
  // The answer goes on with the lines that are logged behind this number, as they come, until the
  // reader leaves.
  std::optional<uint64_t> follow_after = {};
};

// What was logged behind number *last, `most` lines at most, as objects one a line; *last becomes
// the number of the last of them. Numbers come first in each line, so that a reader knows where to
// go on.
std::string EventLines(uint64_t* last, uint64_t most);

// An RFC 9457 problem document: type, title, status, detail, and our code, name, place, cause and
// remedy.
AdminAnswer Problem(unsigned http_status, const Status& error);
// The same, with the status of HTTP that fits the error.
AdminAnswer ProblemOf(const Status& error);

}  // namespace tidepool::memserver
