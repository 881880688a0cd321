// Counted: a number with its noun.
#pragma once

#include <cstdint>
#include <string>

namespace tidepool {

// "1 GPU", "2 GPUs", "3 fetches".
inline std::string Counted(uint64_t count, const std::string& noun) {
  const char* const ending = noun.ends_with("ch") ? "es" : "s";
  return std::to_string(count) + " " + noun + (count == 1 ? "" : ending);
}

}  // namespace tidepool
