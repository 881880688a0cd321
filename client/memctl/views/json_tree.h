// JsonTree: a JSON document with its member order kept. Numbers keep their text, so that output
// made from it has the server's numbers.
//
// One thread; a value type.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

struct JsonTree {
  enum class Kind { kScalar, kArray, kObject };
  Kind kind = Kind::kScalar;
  std::string scalar;                // as in JSON: 7, null, "text" with its quotes
  std::vector<JsonTree> items = {};  // elements of an array
  // Members of an object; keys with their quotes.
  std::vector<std::pair<std::string, JsonTree>> members = {};

  // The member of an object; null if missing. `key` without quotes.
  const JsonTree* Find(std::string_view key) const;
  std::string Text() const;  // on one line, without spaces
};

// Errors: kHandshakeBad (not JSON, or deeper than 64).
Result<JsonTree> ReadJsonTree(std::string_view text);

}  // namespace tidepool::client
