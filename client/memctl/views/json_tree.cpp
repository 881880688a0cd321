#include "client/memctl/views/json_tree.h"

#include <boost/json/basic_parser_impl.hpp>
#include <cstdint>
#include <utility>

#include "base/text/json_quote.h"

namespace tidepool::client {
namespace {

constexpr size_t kDepthMax = 64;

// Builds the tree from the events of Boost.JSON's parser. Keeps the text of numbers, which the
// parser would convert.
class TreeBuilder {
 public:
  static constexpr std::size_t max_object_size = SIZE_MAX, max_array_size = SIZE_MAX,
                               max_key_size = SIZE_MAX, max_string_size = SIZE_MAX;
  using View = boost::json::string_view;
  using Error = boost::json::error_code;

  explicit TreeBuilder(JsonTree* tree) : open_{tree} {}

  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_object_begin(Error&) { return Begin(JsonTree::Kind::kObject); }
  bool on_object_end(std::size_t, Error&) { return End(); }
  bool on_array_begin(Error&) { return Begin(JsonTree::Kind::kArray); }
  bool on_array_end(std::size_t, Error&) { return End(); }
  bool on_key_part(View part, std::size_t, Error&) { return Keep(part); }
  bool on_key(View rest, std::size_t, Error&) {
    Keep(rest);
    open_.back()->members.emplace_back(QuoteJson(std::exchange(text_, {})),
                                       JsonTree{.kind = JsonTree::Kind::kScalar, .scalar = ""});
    return true;
  }
  bool on_string_part(View part, std::size_t, Error&) { return Keep(part); }
  bool on_string(View rest, std::size_t, Error&) {
    Keep(rest);
    return Scalar(QuoteJson(std::exchange(text_, {})));
  }
  bool on_number_part(View part, Error&) { return Keep(part); }
  bool on_int64(std::int64_t, View rest, Error&) { return Number(rest); }
  bool on_uint64(std::uint64_t, View rest, Error&) { return Number(rest); }
  bool on_double(double, View rest, Error&) { return Number(rest); }
  bool on_bool(bool value, Error&) { return Scalar(value ? "true" : "false"); }
  bool on_null(Error&) { return Scalar("null"); }
  bool on_comment_part(View, Error&) { return true; }
  bool on_comment(View, Error&) { return true; }

 private:
  bool Keep(View part) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool Number(View rest) {
    Keep(rest);
    return Scalar(std::exchange(text_, {}));
  }
  // The place of the next value: the document, after the last element, or under the last key.
  JsonTree* Place() {
    JsonTree* const parent = open_.back();
    if (!begun_) return parent;
    if (parent->kind == JsonTree::Kind::kObject) return &parent->members.back().second;
    return &parent->items.emplace_back();
  }
  bool Scalar(std::string text) {
    Place()->scalar = std::move(text);
    begun_ = true;
    return true;
  }
  bool Begin(JsonTree::Kind kind) {
    JsonTree* const tree = Place();
    tree->kind = kind;
    if (begun_) open_.push_back(tree);
    begun_ = true;
    return true;
  }
  bool End() {
    if (open_.size() > 1) open_.pop_back();
    return true;
  }

  // The document, and its open containers; their parents do not grow meanwhile.
  std::vector<JsonTree*> open_;
  bool begun_ = false;  // whether the document's own value has begun
  std::string text_;
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
    if (name.size() == key.size() + 2 && std::string_view(name).substr(1, key.size()) == key)
      return &value;
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
  boost::json::parse_options options;
  options.max_depth = kDepthMax;
  boost::json::basic_parser<TreeBuilder> parser(options, &tree);
  boost::json::error_code error;
  const size_t taken = parser.write_some(false, text.data(), text.size(), error);
  if (error || taken != text.size())
    return Status(ErrorId::kHandshakeBad, "the answer is no JSON document");
  return tree;
}

}  // namespace tidepool::client
