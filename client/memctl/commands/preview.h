// Preview: the effects of a command that changes something.
//
// A value.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tidepool::client {

struct Preview {
  std::string change;                // "release job gpt"
  std::vector<std::string> effects;  // sentences
  std::vector<std::pair<std::string, uint64_t>> numbers = {};
};

}  // namespace tidepool::client
