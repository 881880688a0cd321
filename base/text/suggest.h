// "did you mean": the nearest of a list of known words.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tidepool {

// `; did you mean "run"?` if a known word is near: at most two edits (a common prefix of three
// letters counts as one). Else empty.
std::string DidYouMean(std::string_view word, std::span<const std::string_view> known);

}  // namespace tidepool
