// Parsers shared by several settings: counts, choices and lists of numbers.
//
// Pure functions; any thread. Errors: kConfigBadValue, with the accepted forms as its why.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::memserver {

// The error for a text that is none of `forms`.
Status Expected(const std::string& text, const std::string& forms);

// A whole number from `least` to `most`.
Status ParseCount(const std::string& text, uint32_t least, uint32_t most, uint32_t* value);
// The same; "auto" is kAutomatic.
Status ParseCountOrAuto(const std::string& text, uint32_t least, uint32_t most, uint32_t* value);
// A list such as "0-3,8", each number once; "auto" is the empty list.
Status ParseListOrAuto(const std::string& text, std::vector<uint32_t>* list);

// One of a few words, each with its value.
template <typename T, size_t count>
Status ParseChoice(const std::string& text,
                   const std::array<std::pair<const char*, T>, count>& choices, T* value) {
  std::string forms;
  for (const auto& [name, meaning] : choices) {
    if (text == name) {
      *value = meaning;
      return Status();
    }
    forms += (forms.empty() ? "" : ", ") + std::string(name);
  }

  return Expected(text, forms);
}

}  // namespace tidepool::memserver
