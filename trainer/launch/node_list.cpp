#include "trainer/launch/node_list.h"

#include <charconv>

namespace tidepool::trainer {
namespace {

// Parses and removes the number at the start of `text`; false if there is none.
bool TakeNumber(std::string_view* text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

}  // namespace

std::string FirstNode(std::string_view list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket)
    return std::string(list.substr(0, comma));
  const size_t close = list.find(']', bracket);
  if (close == std::string_view::npos) return "";
  const std::string_view ranges = list.substr(bracket + 1, close - bracket - 1);
  const std::string_view number = ranges.substr(0, ranges.find_first_of(",-"));
  if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) return "";
  // The text after the bracket belongs to every name of the range: rack[1-2]node7.
  const std::string_view rest = list.substr(close + 1);
  const std::string_view tail = rest.substr(0, rest.find(','));
  if (tail.find('[') != std::string_view::npos) return "";
  return std::string(list.substr(0, bracket)) + std::string(number) + std::string(tail);
}

uint64_t TasksOnNode(std::string_view list, uint64_t index) {
  while (!list.empty()) {
    uint64_t tasks = 0, nodes = 1;
    if (!TakeNumber(&list, &tasks)) return 0;
    if (list.starts_with("(x")) {
      list.remove_prefix(2);
      if (!TakeNumber(&list, &nodes) || !list.starts_with(')')) return 0;
      list.remove_prefix(1);
    }

    if (index < nodes) return tasks;
    index -= nodes;
    if (!list.starts_with(',')) return 0;
    list.remove_prefix(1);
  }
  return 0;
}

}  // namespace tidepool::trainer
