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
  unsigned status = 200;                          // HTTP status
  const char* content_type = "application/json";  // or application/problem+json
  std::string body;
  std::string allow = {};  // value of the Allow header; empty for none
  // If set, the answer continues with the log lines behind this number, as they come, until the
  // reader leaves.
  std::optional<uint64_t> follow_after = {};
};

// The log lines behind number *last, at most `most`, as one JSON object a line; *last becomes the
// number of the last one. Each line starts with its number, so that a reader knows where to
// continue.
std::string EventLines(uint64_t* last, uint64_t most);

// An RFC 9457 problem document: type, title, status, detail, and our code, name, place, cause and
// remedy.
AdminAnswer Problem(unsigned http_status, const Status& error);
// The same, with the HTTP status that fits the error.
AdminAnswer ProblemOf(const Status& error);

}  // namespace tidepool::memserver
