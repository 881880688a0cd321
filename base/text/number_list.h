// Number lists: "0-3,8", the notation of people and the kernel for sets of CPUs and NUMA nodes.
//
// Any thread; pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tidepool {

inline constexpr uint32_t kListNumberMax = 65'535;

// The numbers in the order given, each once. Errors: kUsageError (not a list, a descending range, a
// duplicate number or one above the maximum).
Result<std::vector<uint32_t>> ParseNumberList(std::string_view text);
// The shortest form with the same order: {0, 1, 2, 8} is "0-2,8"; "" for none.
std::string FormatNumberList(const std::vector<uint32_t>& numbers);

}  // namespace tidepool
