#include "memserver/config/setting_values.h"

#include <charconv>

#include "base/text/number_list.h"
#include "memserver/residency/settings.h"

namespace tidepool::memserver {

Status Expected(const std::string& text, const std::string& forms) {
  return Status(ErrorId::kConfigBadValue, "'" + text + "' is not a value for this setting")
      .Why("accepted are " + forms);
}

Status ParseCount(const std::string& text, uint32_t least, uint32_t most, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc() && end == text.data() + text.size() && *value >= least && *value <= most)
    return Status();
  return Expected(text,
                  "whole numbers from " + std::to_string(least) + " to " + std::to_string(most));
}

Status ParseCountOrAuto(const std::string& text, uint32_t least, uint32_t most, uint32_t* value) {
  *value = kAutomatic;
  if (text == "auto") return Status();
  const Status status = ParseCount(text, least, most, value);
  return status.ok() ? status
                     : Expected(text, "auto, and whole numbers from " + std::to_string(least) +
                                          " to " + std::to_string(most));
}

Status ParseListOrAuto(const std::string& text, std::vector<uint32_t>* list) {
  list->clear();
  if (text == "auto") return Status();
  auto numbers = ParseNumberList(text);
  if (!numbers.ok()) return Expected(text, "auto, and lists of numbers, each once, as in 0-3,8");
  *list = std::move(numbers).value();
  return Status();
}

}  // namespace tidepool::memserver
