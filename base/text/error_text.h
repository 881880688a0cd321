// How an error looks to people: no line is wider than 100 columns.
//
// Any thread; pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tidepool {

// The widest line of an error, in columns.
inline constexpr size_t kErrorColumns = 100;
// The columns before each further line of a folded one: those of "   fix:   ".
inline constexpr size_t kFoldIndent = 10;

// Breaks lines at spaces to at most `columns` (UTF-8 characters); what goes on is indented by
// kFoldIndent. A longer word, such as a path, stays whole, so that it can be copied.
std::string FoldText(std::string_view text, size_t columns = kErrorColumns);

// The lines of `status.Format()`, folded.
std::string ErrorText(const Status& status);

}  // namespace tidepool
