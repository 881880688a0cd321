// Forms: an answer in JSON as lines or as YAML: the same keys and the same numbers.
//
// One thread; pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace tidepool::client {

// A line for each element of the array `list` of the document; the whole document on one line where
// `list` is empty, or not there.
// Errors: kHandshakeBad.
Result<std::string> AsJsonLines(std::string_view json, std::string_view list);
// In block style; lists of plain values on one line. Errors: kHandshakeBad.
Result<std::string> AsYaml(std::string_view json);
// A line of JSON each to elements of one list. Errors: kHandshakeBad.
Result<std::string> LinesAsYaml(std::string_view lines);

}  // namespace tidepool::client
