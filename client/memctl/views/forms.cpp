#include "client/memctl/views/forms.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "client/memctl/views/json_tree.h"

namespace tidepool::client {
namespace {

using Kind = JsonTree::Kind;

// Words that YAML does not read as text.
bool IsYamlWord(std::string text) {
  constexpr auto kWords = std::to_array<std::string_view>(
      {"true", "false", "null", "yes", "no", "on", "off", "y", "n"});
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kWords.begin(), kWords.end(), text) != kWords.end();
}

// A text without quotes if it is unambiguous; else as in JSON, which YAML reads too.
std::string YamlText(const std::string& quoted) {
  const std::string text = quoted.substr(1, quoted.size() - 2);
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '/' || c == '.' || c == ' ';
  };
  const bool begins =
      !text.empty() &&
      (std::isalpha(static_cast<unsigned char>(text.front())) != 0 || text.front() == '/');
  const bool safe = begins && text.back() != ' ' && std::all_of(text.begin(), text.end(), plain) &&
                    !IsYamlWord(text);
  return safe ? text : quoted;
}

// YAML 1.1 reads 1e-05 as a text, and 1.0e-05 as a number.
std::string YamlScalar(const std::string& scalar) {
  if (scalar.front() == '"') return YamlText(scalar);
  const size_t exponent = scalar.find_first_of("eE");
  const bool is_number = std::isalpha(static_cast<unsigned char>(scalar.front())) == 0;
  if (!is_number || exponent == std::string::npos || scalar.find('.') != std::string::npos)
    return scalar;
  return scalar.substr(0, exponent) + ".0" + scalar.substr(exponent);
}

// Values on the line of their key: a scalar, or a short list of scalars.
bool IsShort(const JsonTree& tree) {
  constexpr size_t kListMax = 80;
  size_t length = 0;
  const auto is_small = [&](const JsonTree& item) {
    return item.kind == Kind::kScalar && (length += item.scalar.size() + 2) <= kListMax;
  };
  if (tree.kind == Kind::kArray) return std::all_of(tree.items.begin(), tree.items.end(), is_small);
  return tree.kind == Kind::kScalar || tree.members.empty();
}

std::string ShortText(const JsonTree& tree) {
  if (tree.kind == Kind::kScalar) return YamlScalar(tree.scalar);
  if (tree.kind == Kind::kObject) return "{}";
  std::string text = "[";
  for (const JsonTree& item : tree.items)
    text += (&item == &tree.items.front() ? "" : ", ") + YamlScalar(item.scalar);
  return text + "]";
}

// `first`: replaces the indent of the first line ("- " of a list element is already written).
void AppendYaml(const JsonTree& tree, size_t indent, bool on_line, std::string* text) {
  const auto begin = [&](bool first) { *text += first && on_line ? "" : std::string(indent, ' '); };
  bool first = true;

  for (const auto& [key, value] : tree.members) {
    begin(first);
    first = false;
    *text += YamlText(key) + ":";
    if (IsShort(value)) {
      *text += " " + ShortText(value) + "\n";
    } else {
      *text += "\n";
      AppendYaml(value, indent + 2, false, text);
    }
  }

  for (const JsonTree& item : tree.items) {
    begin(first);
    first = false;
    *text += "- ";
    if (IsShort(item)) {
      *text += ShortText(item) + "\n";
    } else {
      AppendYaml(item, indent + 2, true, text);
    }
  }
}

std::string Yaml(const JsonTree& tree) {
  if (IsShort(tree)) return ShortText(tree) + "\n";
  std::string text;
  AppendYaml(tree, 0, false, &text);
  return text;
}

}  // namespace

Result<std::string> AsJsonLines(std::string_view json, std::string_view list) {
  TP_ASSIGN_OR_RETURN(const JsonTree tree, ReadJsonTree(json));
  const JsonTree* rows = list.empty() ? nullptr : tree.Find(list);
  if (rows == nullptr || rows->kind != Kind::kArray) return tree.Text() + "\n";
  std::string text;
  for (const JsonTree& row : rows->items) text += row.Text() + "\n";
  return text;
}

Result<std::string> AsYaml(std::string_view json) {
  TP_ASSIGN_OR_RETURN(const JsonTree tree, ReadJsonTree(json));
  return Yaml(tree);
}

Result<std::string> LinesAsYaml(std::string_view lines) {
  JsonTree list{.kind = Kind::kArray, .scalar = ""};
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    TP_ASSIGN_OR_RETURN(JsonTree line, ReadJsonTree(lines.substr(0, end)));
    list.items.push_back(std::move(line));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return list.items.empty() ? std::string() : Yaml(list);
}

}  // namespace tidepool::client
