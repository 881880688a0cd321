#include "client/memctl/json_tree.h"

#include <algorithm>

namespace tidepool::client {
namespace {

constexpr size_t kDepthMax = 64;

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool ReadWhole(JsonTree* tree) {
    const bool sound = ReadValue(tree, 0);
    SkipBlanks();
    return sound && rest_.empty();
  }

 private:
  void SkipBlanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
  bool Take(char wanted) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }
  // With its quotes.
  bool ReadText(std::string* text) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != '"') return false;
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != '"') end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) return false;
    *text = rest_.substr(0, end + 1);
    rest_.remove_prefix(end + 1);
    return true;
  }
  // A number, true, false or null.
  bool ReadWord(std::string* word) {
    SkipBlanks();
    const size_t length = std::min(rest_.find_first_of(",]} \t\r\n\":[{"), rest_.size());
    *word = rest_.substr(0, length);
    rest_.remove_prefix(length);
    const bool is_number = !word->empty() && word->find_first_not_of("0123456789+-.eE") == std::string::npos;
    return is_number || *word == "true" || *word == "false" || *word == "null";
  }
  bool ReadValue(JsonTree* tree, size_t depth) {
    if (depth > kDepthMax) return false;
    if (Take('{')) return ReadMembers(tree, depth);
    if (Take('[')) return ReadItems(tree, depth);
    return ReadText(&tree->scalar) || ReadWord(&tree->scalar);
  }
  bool ReadMembers(JsonTree* tree, size_t depth) {
    tree->kind = JsonTree::Kind::kObject;
    if (Take('}')) return true;
    do {
      auto& [key, value] = tree->members.emplace_back();
      if (!ReadText(&key) || !Take(':') || !ReadValue(&value, depth + 1)) return false;
    } while (Take(','));
    return Take('}');
  }
  bool ReadItems(JsonTree* tree, size_t depth) {
    tree->kind = JsonTree::Kind::kArray;
    if (Take(']')) return true;
    do {
      if (!ReadValue(&tree->items.emplace_back(), depth + 1)) return false;
    } while (Take(','));
    return Take(']');
  }

  std::string_view rest_;
};

void Append(const JsonTree& tree, std::string* text) {
  const char* between = "";
  switch (tree.kind) {
    case JsonTree::Kind::kScalar: *text += tree.scalar; return;
    case JsonTree::Kind::kArray:
      *text += "[";
      for (const JsonTree& item : tree.items) {
        *text += between;
        Append(item, text);
        between = ",";
      }
      *text += "]";
      return;
    case JsonTree::Kind::kObject:
      *text += "{";
      for (const auto& [key, value] : tree.members) {
        *text += between + key + ":";
        Append(value, text);
        between = ",";
      }
      *text += "}";
      return;
  }
}

}  // namespace

const JsonTree* JsonTree::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name.size() == key.size() + 2 && std::string_view(name).substr(1, key.size()) == key) return &value;
  }
  return nullptr;
}

std::string JsonTree::Text() const {
  std::string text;
  Append(*this, &text);
  return text;
}

Result<JsonTree> ReadJsonTree(std::string_view text) {
  JsonTree tree;
  if (!Reader(text).ReadWhole(&tree)) return Status(ErrorId::kHandshakeBad, "the answer is no JSON document");
  return tree;
}

}  // namespace tidepool::client
