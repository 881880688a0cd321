// Forms: converts a JSON answer to lines or YAML with the same keys and the same numbers.
//
// One thread; pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace tidepool::client {

// One line per element of the document's array `list`; the whole document on one line if `list` is
// empty or missing. Errors: kHandshakeBad.
Result<std::string> AsJsonLines(std::string_view json, std::string_view list);
// In block style; short lists of scalars on one line. Errors: kHandshakeBad.
Result<std::string> AsYaml(std::string_view json);
// Converts lines of JSON to one YAML list. Errors: kHandshakeBad.
Result<std::string> LinesAsYaml(std::string_view lines);

}  // namespace tidepool::client
