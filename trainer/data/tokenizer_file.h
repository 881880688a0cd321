// ReadTokenizer: GPT-2's byte-level BPE from the files that Hugging Face keeps beside a model.
//
// Any thread. This is the data's one door to Boost.JSON.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::trainer {

// What the files say. Tokens are bytes: the letters that the files write in place of bytes are
// turned back.
struct TokenizerFile {
  // A token that stands for itself wherever its text is met.
  struct Added {
    uint32_t id = 0;
    std::string text;
  };

  std::string path;                 // of what was read, for people
  std::vector<std::string> tokens;  // by id; empty where there is no such id
  // Pairs that become one token, the preferred first.
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<Added> added;
  bool prefix_space = false;  // a text begins with a space, whether it has one or not
};

// Where a tokenizer lies in `directory`: the names of its files there; empty where there is none.
std::vector<std::string> TokenizerFilesIn(const std::string& directory);
// `directory`: holds tokenizer.json, or else vocab.json and merges.txt.
// Errors: kFileUnreadable (there are no such files); kDataBad (they are damaged, or describe
// another kind of tokenizer; the text names what).
Result<TokenizerFile> ReadTokenizer(const std::string& directory);

// Copies the files of the tokenizer in `from`, if there is one, so that a user of weights in `to`
// reads text the same way. Does nothing where both are one directory, or `from` is empty. Errors:
// kFileWriteFailed, kFileUnreadable.
Status CopyTokenizer(const std::string& from, const std::string& to);

}  // namespace tidepool::trainer
