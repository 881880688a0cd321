// QuoteJson: a text as a JSON string.
//
// Any thread. It stands below the log and TP_CHECK, which both use it, and calls neither.
#pragma once

#include <string>
#include <string_view>

namespace tidepool {

// `value` as a JSON string, quotes included; bytes that are not UTF-8 become U+FFFD.
std::string QuoteJson(std::string_view value);

}  // namespace tidepool
