#include "memserver/config_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

namespace tidepool::memserver {

namespace {

std::string Place(const std::string& path, const toml::source_region& region) {
  return path + ":" + std::to_string(region.begin.line);
}

// Behind the string that begins at `at`; one on a single line ends with the line at the latest.
size_t EndOfString(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const std::string_view closing(three.data(), text.substr(at).starts_with(three) ? 3 : 1);
  for (size_t i = at + closing.size(); i < text.size(); ++i) {
    if (text.substr(i).starts_with(closing)) return i + closing.size();
    if (closing.size() == 1 && text[i] == '\n') return i;
    if (quote == '"' && text[i] == '\\') ++i;
  }
  return text.size();
}

// The first line with a letter beyond ASCII outside strings and comments; 0 where there is none. TOML has none there, and toml++ 3.3 runs
// into undefined behaviour on many of them.
size_t LineOfForeignLetter(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  while (at < text.size()) {
    const char c = text[at];
    if ((static_cast<unsigned char>(c) & 0x80U) != 0) return 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + at, '\n'));
    if (c == '"' || c == '\'') {
      at = EndOfString(text, at);
    } else {
      at = c == '#' ? std::min(text.find('\n', at), text.size()) : at + 1;
    }
  }
  return 0;
}

Status Flatten(const toml::table& table, const std::string& prefix, const std::string& path, std::vector<FileSetting>* settings) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const std::string where = Place(path, node.source());
    if (const auto* inner = node.as_table()) {
      TP_RETURN_IF_ERROR(Flatten(*inner, key + ".", path, settings));
    } else if (const auto* text = node.as_string()) {
      settings->push_back({key, text->get(), where});
    } else if (const auto* number = node.as_integer()) {
      settings->push_back({key, std::to_string(number->get()), where});
    } else if (const auto* truth = node.as_boolean()) {
      settings->push_back({key, truth->get() ? "true" : "false", where});
    } else {
      return Status(ErrorId::kConfigBadValue, "the value of " + key + " is neither a string, a whole number nor true or false")
          .Where(where);
    }
  }
  return Status();
}

}  // namespace

Result<std::vector<FileSetting>> ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Status(ErrorId::kConfigUnreadable, "the configuration file cannot be read").Where(path).Why(std::strerror(errno));
  }
  const std::string content = text.str();
  if (const size_t line = LineOfForeignLetter(content); line != 0) {
    return Status(ErrorId::kConfigSyntax, "the configuration file is not valid TOML")
        .Where(path + ":" + std::to_string(line))
        .Why("letters beyond ASCII stand in strings and comments only");
  }
  std::vector<FileSetting> settings;
  try {
    const toml::table table = toml::parse(content, path);
    TP_RETURN_IF_ERROR(Flatten(table, "", path, &settings));
  } catch (const toml::parse_error& error) {
    return Status(ErrorId::kConfigSyntax, "the configuration file is not valid TOML")
        .Where(Place(path, error.source()) + ", column " + std::to_string(error.source().begin.column))
        .Why(std::string(error.description()));
  }
  return settings;
}

}  // namespace tidepool::memserver
