#include "base/text/number_list.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace tidepool {
namespace {

std::optional<uint32_t> Number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole =
      error == std::errc() && end == text.data() + text.size() && value <= kListNumberMax;
  return whole ? std::optional(value) : std::nullopt;
}

}  // namespace

Result<std::vector<uint32_t>> ParseNumberList(std::string_view text) {
  const Status bad =
      Status(ErrorId::kUsageError,
             "'" + std::string(text) + "' is not a list of numbers, each once, as in 0-3,8");

  std::vector<uint32_t> numbers;
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);

    const size_t dash = item.find('-');
    const auto first = Number(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : Number(item.substr(dash + 1));
    if (!first || !last || *last < *first) return bad;
    for (uint32_t number = *first; number <= *last; ++number) {
      if (std::find(numbers.begin(), numbers.end(), number) != numbers.end()) return bad;
      numbers.push_back(number);
    }
  }

  return numbers;
}

std::string FormatNumberList(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[begin]);
    if (end - begin > 1) text += "-" + std::to_string(numbers[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace tidepool
