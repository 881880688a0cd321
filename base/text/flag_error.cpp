#include "base/text/flag_error.h"

#include <optional>
#include <string_view>
#include <utility>

namespace tidepool {
namespace {

// The parts of `text` before and after `middle`.
std::optional<std::pair<std::string, std::string>> Cut(const std::string& text,
                                                       std::string_view middle) {
  const size_t at = text.find(middle);
  if (at == std::string::npos) return {};
  return std::pair{text.substr(0, at), text.substr(at + middle.size())};
}

// The flag of "ps: --output".
std::string FlagIn(const std::string& words) {
  const size_t space = words.rfind(' ');
  return space == std::string::npos ? words : words.substr(space + 1);
}

}  // namespace

FlagError PlainFlagError(const std::string& text) {
  if (const auto cut = Cut(text, ": At Most ")) {
    const std::string flag = FlagIn(cut->first);
    const auto number = Cut(cut->second, "received ");
    return {cut->first + " is given " + (number ? number->second : "several") + " times",
            "leave all but one " + flag + " out"};
  }

  if (const auto cut = Cut(text, " excludes ")) {
    return {cut->first + " and " + cut->second + " exclude each other",
            "leave " + FlagIn(cut->first) + " or " + cut->second + " out"};
  }
  if (const auto cut = Cut(text, " requires ")) {
    return {cut->first + " needs " + cut->second,
            "give " + cut->second + " too, or leave " + FlagIn(cut->first) + " out"};
  }

  if (text.ends_with(" missing") && text.find(" required ") != std::string::npos) {
    const std::string flag = text.substr(0, text.find(": "));
    return {flag + " stands without its value", "give " + flag + " a value, or leave it out"};
  }
  if (const auto cut = Cut(text, ": ");
      cut && cut->second.find(" is not in range ") != std::string::npos)
    return {text, "give " + FlagIn(cut->first) + " a value in this range"};

  if (const auto cut = Cut(text, "Could not convert: ")) {
    const auto value = Cut(cut->second, " = ");
    if (!value) return {text, ""};
    return {value->first + " " + value->second + " is no number of the kind that it takes",
            "correct the value of " + value->first};
  }
  return {text, ""};
}

}  // namespace tidepool
