#include "base/formats/toml_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

// toml++ 3.3 asserts conditions that hostile text violates ("[[["), and without assertions tells
// the optimiser to assume them. Here it does neither: its parser then finds the error by itself.
#undef NDEBUG
#define TOML_ASSERT(fact) static_cast<void>(0)
#include <toml++/toml.h>

namespace tidepool {

namespace {

std::string Place(const std::string& path, const toml::source_region& region) {
  return path + ":" + std::to_string(region.begin.line);
}

// The position behind the string that begins at `at`, on the same line; npos if it does not end, or
// if no string is allowed there.
size_t EndOfString(std::string_view text, size_t at) {
  constexpr std::string_view kBefore = "=[{,\n";
  const char quote = text[at];
  const size_t before = text.substr(0, at).find_last_not_of(" \t\r");
  if (before != std::string_view::npos && kBefore.find(text[before]) == std::string_view::npos)
    return std::string_view::npos;
  // Multi-line strings: no setting needs them.
  if (text.substr(at).starts_with(std::string(3, quote))) return std::string_view::npos;
  for (size_t i = at + 1; i < text.size() && text[i] != '\n'; ++i) {
    if (text[i] == quote) return i + 1;
    if (quote == '"' && text[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

// The line of the first non-ASCII letter outside of strings and comments, or the line from which
// that cannot be decided; 0 if there is none. TOML has no such letters, and toml++ 3.3 runs into
// undefined behaviour on many of them.
size_t LineOfForeignLetter(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  const auto is_foreign = [](char c) { return (static_cast<unsigned char>(c) & 0x80U) != 0; };
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (std::none_of(text.begin(), text.end(), is_foreign)) return 0;
  for (size_t at = 0; at < text.size();) {
    const bool quoted = text[at] == '"' || text[at] == '\'';
    const size_t next = quoted            ? EndOfString(text, at)
                        : text[at] == '#' ? std::min(text.find('\n', at), text.size())
                                          : at + 1;

    if (next == std::string_view::npos || is_foreign(text[at])) {
      return 1 + static_cast<size_t>(
                     std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n'));
    }
    at = next;
  }
  return 0;
}

// The file being read, and the options.
struct Reading {
  const std::string& path;
  Fractions fractions;
};

Status Flatten(const toml::table& table, const std::string& prefix, const Reading& reading,
               std::vector<FileSetting>* settings);

// The tables of [[key]]: key[0].name, key[1].name and so on.
Status FlattenList(const toml::array& list, const std::string& key, const Reading& reading,
                   std::vector<FileSetting>* settings) {
  size_t index = 0;
  for (const auto& element : list) {
    const auto* table = element.as_table();
    if (table == nullptr)
      return Status(ErrorId::kConfigBadValue,
                    "the value of " + key + " is a list, and no list of tables")
          .Where(Place(reading.path, list.source()));
    TP_RETURN_IF_ERROR(
        Flatten(*table, key + "[" + std::to_string(index++) + "].", reading, settings));
  }

  return Status();
}

// The shortest text that reads as the same number.
std::string ShortestText(double number) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number);
  return std::string(text.data(), error == std::errc() ? end : text.data());
}

// None: no setting has a value of this kind.
std::optional<std::string> TextOf(const toml::node& node, Fractions fractions) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point();
      number != nullptr && fractions == Fractions::kAllowed)
    return ShortestText(number->get());
  return std::nullopt;
}

Status Flatten(const toml::table& table, const std::string& prefix, const Reading& reading,
               std::vector<FileSetting>* settings) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const std::string where = Place(reading.path, node.source());

    if (const auto* inner = node.as_table()) {
      TP_RETURN_IF_ERROR(Flatten(*inner, key + ".", reading, settings));
    } else if (const auto* list = node.as_array()) {
      TP_RETURN_IF_ERROR(FlattenList(*list, key, reading, settings));
    } else if (auto text = TextOf(node, reading.fractions)) {
      settings->push_back({key, *std::move(text), where});
    } else {
      // No setting is a fraction or a date.
      return Status(
                 ErrorId::kConfigBadValue,
                 "the value of " + key + " is neither a string, a whole number nor true or false")
          .Where(where);
    }
  }
  return Status();
}

}  // namespace

Result<std::vector<FileSetting>> ReadTomlFile(const std::string& path, Fractions fractions) {
  std::ifstream file(path);
  std::stringstream text;
  const bool is_empty = file && file.peek() == std::ifstream::traits_type::eof() && !file.bad();
  if (!is_empty && (!file || !(text << file.rdbuf()))) {
    return Status(ErrorId::kConfigUnreadable, "the configuration file cannot be read")
        .Where(path)
        .Why(std::strerror(errno));
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
    TP_RETURN_IF_ERROR(Flatten(table, "", {path, fractions}, &settings));
  } catch (const toml::parse_error& error) {
    return Status(ErrorId::kConfigSyntax, "the configuration file is not valid TOML")
        .Where(Place(path, error.source()) + ", column " +
               std::to_string(error.source().begin.column))
        .Why(std::string(error.description()));
  }
  return settings;
}

}  // namespace tidepool
