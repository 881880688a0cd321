// QuoteJson: a text as a JSON string.
//
// Any thread. The log and TP_CHECK both use it, so it calls neither.
#pragma once

#include <string>
#include <string_view>

namespace tidepool {

// `value` as a JSON string, quotes included; bytes that are not UTF-8 become U+FFFD.
std::string QuoteJson(std::string_view value);

}  // namespace tidepool
