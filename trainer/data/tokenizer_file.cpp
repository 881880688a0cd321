#include "trainer/data/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <charconv>
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
      .Why("trainer reads the BPE of GPT-2, Llama 2 and Llama 3, as transformers saves it")
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

constexpr std::string_view kLowLine = "\xE2\x96\x81";  // U+2581, sentencepiece's space

// "<0x0A>" names a byte.
std::optional<uint8_t> ByteNamed(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  return error == std::errc() && end == text.data() + 5 ? std::optional(byte) : std::nullopt;
}

// Sentencepiece's text with its spaces.
std::string WithSpaces(std::string_view text) {
  std::string spaced;
  for (size_t at = 0; at < text.size();) {
    const bool is_space = text.substr(at).starts_with(kLowLine);
    spaced += is_space ? ' ' : text[at];
    at += is_space ? kLowLine.size() : 1;
  }
  return spaced;
}

// The bytes that a text of the file stands for; nullopt: it stands for none.
std::optional<std::string> Decoded(std::string_view text, const Letters& letters,
                                   const TokenizerFile& file) {
  return file.of_letters ? WithSpaces(text) : letters.Bytes(text);
}

Status AddTokens(const json::object& vocabulary, const Letters& letters, TokenizerFile* file) {
  std::array<std::optional<uint32_t>, 256> bytes;
  for (const auto& [text, id] : vocabulary) {
    json::error_code error;
    const auto number = id.to_number<uint32_t>(error);
    if (error || number >= kIdsMax)
      return NotUsable(file->path, "token \"" + std::string(text) + "\" has no usable id");
    if (number >= file->tokens.size()) file->tokens.resize(number + 1);
    // Text that is not such letters is a literal token, such as <|endoftext|> in another alphabet.
    file->tokens[number] = Decoded(text, letters, *file).value_or(std::string(text));
    const std::optional<uint8_t> byte = file->of_letters ? ByteNamed(text) : std::nullopt;
    if (!byte) continue;
    file->tokens[number] = std::string(1, static_cast<char>(*byte));
    bytes[*byte] = number;
  }

  for (size_t byte = 0; file->of_letters && byte < bytes.size(); ++byte) {
    if (!bytes[byte])
      return NotUsable(file->path, "byte " + std::to_string(byte) + " has no token");
    file->byte_ids.push_back(*bytes[byte]);
  }
  return {};
}

Status AddMerge(std::string_view left, std::string_view right, const Letters& letters,
                TokenizerFile* file) {
  const auto a = Decoded(left, letters, *file), b = Decoded(right, letters, *file);
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

// The elements of a Sequence, or the part itself; none if it is missing.
std::vector<const json::object*> PartsOf(const json::object& object, const char* key,
                                         const char* elements) {
  const json::value* part = object.if_contains(key);
  if (part == nullptr || !part->is_object()) return {};
  const json::value* list = part->get_object().if_contains(elements);
  if (TypeOf(object, key) != "Sequence" || list == nullptr || !list->is_array())
    return {&part->get_object()};

  std::vector<const json::object*> parts;
  for (const json::value& one : list->get_array()) {
    if (one.is_object()) parts.push_back(&one.get_object());
  }
  return parts;
}

std::string TextOf(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

// The types of the parts, as "Split, ByteLevel".
std::string TypesOf(const std::vector<const json::object*>& parts) {
  std::string types;
  for (const json::object* part : parts)
    types += (types.empty() ? "" : ", ") + TextOf(*part, "type");
  return types.empty() ? "none" : types;
}

// Reads how bytes are cut into pieces. Returns the first property that neither GPT-2 nor Llama 3
// has; empty: none.
std::string ReadByteLevel(const json::object& object, TokenizerFile* file) {
  const auto parts = PartsOf(object, "pre_tokenizer", "pretokenizers");
  const std::string types = TypesOf(parts);
  if (!IsOff(object, "normalizer")) return "it has a normalizer";
  if (types != "ByteLevel" && types != "Split, ByteLevel")
    return "its pre_tokenizer is " + types + ", not ByteLevel";

  const json::object& level = *parts.back();
  const bool own_pattern = !level.contains("use_regex") || !IsOff(level, "use_regex");
  if (!IsOff(level, "add_prefix_space")) file->prefix = SpacePrefix::kText;
  if (parts.size() == 1) return own_pattern ? "" : "its pre_tokenizer does not use GPT-2's pattern";

  const json::object& split = *parts.front();
  const json::value* pattern = split.if_contains("pattern");
  if (pattern != nullptr && pattern->is_object())
    file->pattern = TextOf(pattern->get_object(), "Regex");
  if (file->pattern.empty() || own_pattern || TextOf(split, "behavior") != "Isolated" ||
      !IsOff(split, "invert"))
    return "its pre_tokenizer does not cut a text as Llama 3's does";
  return {};
}

// Reads how letters are prepared. Returns the first property that Llama 2 does not have.
std::string ReadLetters(const json::object& object, TokenizerFile* file) {
  file->of_letters = true;
  const auto before = PartsOf(object, "pre_tokenizer", "pretokenizers"),
             normal = PartsOf(object, "normalizer", "normalizers");
  if (TypesOf(normal) == "Prepend, Replace" && before.empty() &&
      TextOf(*normal[0], "prepend") == kLowLine && TextOf(*normal[1], "content") == kLowLine) {
    file->prefix = SpacePrefix::kEachPartAlways;
    return {};
  }
  if (!normal.empty()) return "its normalizer is " + TypesOf(normal);
  if (TypesOf(before) != "Metaspace")
    return "its pre_tokenizer is " + TypesOf(before) + ", not Metaspace";

  const json::object& space = *before.front();
  const std::string scheme = TextOf(space, "prepend_scheme");
  if (TextOf(space, "replacement") != kLowLine || !IsOff(space, "split"))
    return "its Metaspace is not Llama 2's";
  file->prefix = scheme == "first"   ? SpacePrefix::kFirstPart
                 : scheme == "never" ? SpacePrefix::kNone
                                     : SpacePrefix::kEachPart;
  return {};
}

// Reads the kind of tokenizer. Returns the first property that no kind known here has; empty: none.
std::string ReadKind(const json::object& object, const json::object& model, TokenizerFile* file) {
  const std::string type = TypeOf(object, "model");
  if (!type.empty() && type != "BPE") return "its model is " + type + ", not BPE";
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"}) {
    if (!IsOff(model, key)) return std::string("it uses ") + key;
  }
  file->whole_pieces = !IsOff(model, "ignore_merges");
  if (IsOff(model, "byte_fallback")) return ReadByteLevel(object, file);
  return file->whole_pieces ? "it uses ignore_merges" : ReadLetters(object, file);
}

// The token that the post-processor puts before a text.
std::optional<uint32_t> BeginOf(const json::object& object, const TokenizerFile& file) {
  for (const json::object* part : PartsOf(object, "post_processor", "processors")) {
    const json::value* single = part->if_contains("single");
    if (single == nullptr || !single->is_array() || single->get_array().empty()) continue;
    const json::object* first = single->get_array()[0].if_object();
    const json::value* special = first != nullptr ? first->if_contains("SpecialToken") : nullptr;
    if (special == nullptr || !special->is_object()) continue;

    const std::string name = TextOf(special->get_object(), "id");
    for (const TokenizerFile::Added& added : file.added) {
      if (added.text == name) return added.id;
    }
  }
  return std::nullopt;
}

Result<TokenizerFile> ReadWhole(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const json::object object, ReadObject(path));
  const json::value* model = object.if_contains("model");
  if (model == nullptr || !model->is_object()) return NotUsable(path, "it has no model");
  TokenizerFile file;
  file.path = path;
  const std::string other = ReadKind(object, model->get_object(), &file);
  if (!other.empty()) return NotUsable(path, other);
  const json::value* vocabulary = model->get_object().if_contains("vocab");
  if (vocabulary == nullptr || !vocabulary->is_object())
    return NotUsable(path, "its model has no vocabulary");

  const Letters letters;
  TP_RETURN_IF_ERROR(AddTokens(vocabulary->get_object(), letters, &file));
  TP_RETURN_IF_ERROR(AddMerges(model->get_object().if_contains("merges"), letters, &file));
  TP_RETURN_IF_ERROR(AddAdded(object, &file));
  file.begins = BeginOf(object, file);
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
