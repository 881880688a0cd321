// ReadTokenizer: reads GPT-2's byte-level BPE from Hugging Face's files beside a model.
//
// Any thread. This is the data's one door to Boost.JSON.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::trainer {

// The content of the files. Tokens are bytes: the letters that stand for bytes in the files are
// decoded.
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
  bool prefix_space = false;  // encode a text as if it began with a space
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
