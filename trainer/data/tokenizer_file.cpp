#include "trainer/data/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include <boost/json.hpp>

#include "base/system/whole_file.h"

namespace tidepool::trainer {
namespace {

namespace json = boost::json;

constexpr const char* kWhole = "tokenizer.json";
constexpr const char* kVocabulary = "vocab.json";
constexpr const char* kMerges = "merges.txt";
constexpr uint32_t kIdsMax = 1 << 24;

Status NotUsable(const std::string& path, const std::string& why) {
  return Status(ErrorId::kDataBad, path + ": " + why)
      .Where(path)
      .Why("trainer reads GPT-2's byte-level BPE, as transformers saves it")
      .Fix("tokenize the data with the model's own tokenizer, and give the token file with --data");
}

Result<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (file) return text.str();
  return Status(ErrorId::kFileUnreadable, "cannot read " + path)
      .Where(path)
      .Fix("give a directory with tokenizer.json, or with vocab.json and merges.txt");
}

Result<json::object> ReadObject(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, ReadAll(path));
  json::error_code error;
  json::value parsed = json::parse(text, error);
  if (error || !parsed.is_object()) return NotUsable(path, "it is not a JSON object");
  return std::move(parsed).as_object();
}

// The code point at `at`, which advances; nullopt if the text is not valid UTF-8.
std::optional<uint32_t> NextCodePoint(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<uint8_t>(text[i]); };
  const uint32_t first = byte((*at)++);
  if (first < 0x80) return first;
  const size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
  if (more == 0 || *at + more > text.size()) return std::nullopt;

  uint32_t code = first & (0x3FU >> more);
  for (size_t i = 0; i < more; ++i) code = code << 6 | (byte((*at)++) & 0x3F);
  return code;
}

// GPT-2 writes bytes as printable letters: those printable in Latin-1 as themselves, the others, in
// order, as the code points from 256 on.
class Letters {
 public:
  Letters() {
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
                             (byte >= 174 && byte <= 255);
      bytes_[printable ? byte : next++] = static_cast<char>(byte);
    }
  }

  // The bytes that `letters` stand for; nullopt if a letter stands for no byte.
  std::optional<std::string> Bytes(std::string_view letters) const {
    std::string bytes;
    for (size_t at = 0; at < letters.size();) {
      const std::optional<uint32_t> code = NextCodePoint(letters, &at);
      const auto found = bytes_.find(code.value_or(0));
      if (!code || found == bytes_.end()) return std::nullopt;
      bytes.push_back(found->second);
    }
    return bytes;
  }

 private:
  std::map<uint32_t, char> bytes_;  // by code point
};

// Whether `value` is missing, null, false or an empty text: the feature is off.
bool IsOff(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr || value->is_null() || (value->is_bool() && !value->get_bool()) ||
         (value->is_string() && value->get_string().empty());
}

std::string TypeOf(const json::object& object, const char* key) {
  const json::value* part = object.if_contains(key);
  const json::value* type =
      part != nullptr && part->is_object() ? part->get_object().if_contains("type") : nullptr;
  return type != nullptr && type->is_string() ? std::string(type->get_string()) : std::string();
}

Status AddTokens(const json::object& vocabulary, const Letters& letters, TokenizerFile* file) {
  for (const auto& [text, id] : vocabulary) {
    json::error_code error;
    const auto number = id.to_number<uint32_t>(error);
    if (error || number >= kIdsMax)
      return NotUsable(file->path, "token \"" + std::string(text) + "\" has no usable id");
    if (number >= file->tokens.size()) file->tokens.resize(number + 1);
    // Text that is not such letters is a literal token, such as <|endoftext|> in another alphabet.
    file->tokens[number] = letters.Bytes(text).value_or(std::string(text));
  }
  return {};
}

Status AddMerge(std::string_view left, std::string_view right, const Letters& letters,
                TokenizerFile* file) {
  const std::optional<std::string> a = letters.Bytes(left), b = letters.Bytes(right);
  if (!a || !b || a->empty() || b->empty())
    return NotUsable(file->path, "merge " + std::to_string(file->merges.size()) + " is no pair");
  file->merges.emplace_back(*a, *b);
  return {};
}

// "left right"
Status AddMergeLine(std::string_view line, const Letters& letters, TokenizerFile* file) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return AddMerge(line, "", letters, file);
  return AddMerge(line.substr(0, space), line.substr(space + 1), letters, file);
}

Status AddMerges(const json::value* merges, const Letters& letters, TokenizerFile* file) {
  if (merges == nullptr || !merges->is_array()) return NotUsable(file->path, "it has no merges");
  for (const json::value& merge : merges->get_array()) {
    if (merge.is_string()) {
      TP_RETURN_IF_ERROR(AddMergeLine(merge.get_string(), letters, file));
      continue;
    }

    const bool is_pair = merge.is_array() && merge.get_array().size() == 2 &&
                         merge.get_array()[0].is_string() && merge.get_array()[1].is_string();
    if (!is_pair)
      return NotUsable(file->path, "merge " + std::to_string(file->merges.size()) + " is no pair");
    TP_RETURN_IF_ERROR(AddMerge(merge.get_array()[0].get_string(),
                                merge.get_array()[1].get_string(), letters, file));
  }
  return {};
}

Status AddAdded(const json::object& object, TokenizerFile* file) {
  const json::value* added = object.if_contains("added_tokens");
  if (added == nullptr || !added->is_array()) return {};
  for (const json::value& one : added->get_array()) {
    const json::object* token = one.if_object();
    const json::value* text = token != nullptr ? token->if_contains("content") : nullptr;
    const json::value* id = token != nullptr ? token->if_contains("id") : nullptr;
    if (text == nullptr || !text->is_string() || text->get_string().empty() || id == nullptr)
      return NotUsable(file->path, "an added token has no text or id");

    json::error_code error;
    const auto number = id->to_number<uint32_t>(error);
    if (error || number >= kIdsMax) return NotUsable(file->path, "an added token has no usable id");
    if (number >= file->tokens.size()) file->tokens.resize(number + 1);
    file->tokens[number] = text->get_string();
    file->added.push_back({number, std::string(text->get_string())});
  }
  return {};
}

// The first property of tokenizer.json that GPT-2 does not have; empty: none.
std::string OtherKind(const json::object& object, const json::object& model) {
  const std::string type = TypeOf(object, "model"), before = TypeOf(object, "pre_tokenizer");
  if (!type.empty() && type != "BPE") return "its model is " + type + ", not BPE";
  if (before != "ByteLevel")
    return "its pre_tokenizer is " + (before.empty() ? "none" : before) + ", not ByteLevel";
  if (!IsOff(object, "normalizer")) return "it has a normalizer";
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
                          "ignore_merges", "dropout"}) {
    if (!IsOff(model, key)) return std::string("it uses ") + key;
  }

  const json::object& level = object.at("pre_tokenizer").get_object();
  if (level.contains("use_regex") && IsOff(level, "use_regex"))
    return "its pre_tokenizer does not use GPT-2's pattern";
  return {};
}

Result<TokenizerFile> ReadWhole(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const json::object object, ReadObject(path));
  const json::value* model = object.if_contains("model");
  if (model == nullptr || !model->is_object()) return NotUsable(path, "it has no model");
  const std::string other = OtherKind(object, model->get_object());
  if (!other.empty()) return NotUsable(path, other);
  const json::value* vocabulary = model->get_object().if_contains("vocab");
  if (vocabulary == nullptr || !vocabulary->is_object())
    return NotUsable(path, "its model has no vocabulary");

  TokenizerFile file;
  file.path = path;
  file.prefix_space = !IsOff(object.at("pre_tokenizer").get_object(), "add_prefix_space");
  const Letters letters;
  TP_RETURN_IF_ERROR(AddTokens(vocabulary->get_object(), letters, &file));
  TP_RETURN_IF_ERROR(AddMerges(model->get_object().if_contains("merges"), letters, &file));
  TP_RETURN_IF_ERROR(AddAdded(object, &file));
  return file;
}

// The two files of GPT-2's first releases. They do not mark literal tokens; <|endoftext|> is the
// one of GPT-2.
Result<TokenizerFile> ReadPair(const std::string& directory) {
  constexpr std::string_view kEnd = "<|endoftext|>";
  TokenizerFile file;
  file.path = directory + "/" + kVocabulary;
  TP_ASSIGN_OR_RETURN(const json::object vocabulary, ReadObject(file.path));
  const Letters letters;
  TP_RETURN_IF_ERROR(AddTokens(vocabulary, letters, &file));
  const auto end = std::find(file.tokens.begin(), file.tokens.end(), kEnd);
  if (end != file.tokens.end())
    file.added.push_back({static_cast<uint32_t>(end - file.tokens.begin()), std::string(kEnd)});

  file.path = directory + "/" + kMerges;
  TP_ASSIGN_OR_RETURN(const std::string text, ReadAll(file.path));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#version") || line.empty()) continue;
    TP_RETURN_IF_ERROR(AddMergeLine(line, letters, &file));
  }
  return file;
}

}  // namespace

std::vector<std::string> TokenizerFilesIn(const std::string& directory) {
  const auto there = [&directory](const char* name) {
    std::error_code unknown;
    return std::filesystem::is_regular_file(directory + "/" + name, unknown);
  };
  if (there(kWhole)) return {kWhole};
  if (there(kVocabulary) && there(kMerges)) return {kVocabulary, kMerges};
  return {};
}

Status CopyTokenizer(const std::string& from, const std::string& to) {
  std::error_code unknown;
  if (from.empty() || std::filesystem::equivalent(from, to, unknown)) return {};
  for (const std::string& name : TokenizerFilesIn(from)) {
    TP_ASSIGN_OR_RETURN(const std::string text, ReadAll(from + "/" + name));
    TP_RETURN_IF_ERROR(WriteWholeFile(to + "/" + name, text));
  }
  return {};
}

Result<TokenizerFile> ReadTokenizer(const std::string& directory) {
  const std::vector<std::string> files = TokenizerFilesIn(directory);
  return files.size() == 2 ? ReadPair(directory) : ReadWhole(directory + "/" + kWhole);
}

}  // namespace tidepool::trainer
