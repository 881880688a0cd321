// ReadTokenizer: reads the byte pair encodings of GPT-2, Llama 3 (both on bytes) and Llama 2 (on
// letters, as sentencepiece makes it) from Hugging Face's files beside a model.
//
// Any thread. This is the data's one door to Boost.JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::trainer {

// Where a text gets a space in front of it. Parts lie between added tokens.
enum class SpacePrefix {
  kNone,
  kText,           // before the text, unless it begins with one
  kFirstPart,      // before a part that begins the text, unless it begins with one
  kEachPart,       // before each part that does not begin with one
  kEachPartAlways  // before each part
};

// The content of the files. Tokens are bytes: the letters that stand for bytes or spaces in the
// files are decoded.
struct TokenizerFile {
  // A token that is matched literally in a text.
  struct Added {
    uint32_t id = 0;
    std::string text;
  };

  std::string path;                 // the file that was read, for people
  std::vector<std::string> tokens;  // by id; empty for an unused id
  // Pairs that merge into one token, highest priority first.
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<Added> added;
  SpacePrefix prefix = SpacePrefix::kNone;
  // Pieces of a text that merges never cross, as a PCRE2 pattern; empty: GPT-2's. Of byte-level
  // tokenizers only.
  std::string pattern;
  bool whole_pieces = false;  // a piece that is a token needs no merges
  // Merges begin with UTF-8 letters instead of bytes; letters without a token become `byte_ids`.
  bool of_letters = false;
  std::vector<uint32_t> byte_ids;  // by byte; with `of_letters` only
  std::optional<uint32_t> begins;  // the token that stands before a text
};

// The names of the tokenizer's files in `directory`; empty if there is no tokenizer.
std::vector<std::string> TokenizerFilesIn(const std::string& directory);
// `directory`: holds tokenizer.json, or else vocab.json and merges.txt. Errors: kFileUnreadable (no
// such files); kDataBad (they are damaged, or describe another kind of tokenizer; the text says
// which).
Result<TokenizerFile> ReadTokenizer(const std::string& directory);

// Copies the files of the tokenizer in `from`, if there is one, so that users of the weights in
// `to` tokenize the same way. Does nothing if both are the same directory, or `from` is empty.
// Errors: kFileWriteFailed, kFileUnreadable.
Status CopyTokenizer(const std::string& from, const std::string& to);

}  // namespace tidepool::trainer
