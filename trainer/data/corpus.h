// Corpus: what a run trains on and what it is judged by, from whatever --data names.
//
// Any thread; copies share the text or the open files.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "trainer/data/bpe_tokenizer.h"
#include "trainer/data/own_outputs.h"
#include "trainer/data/token_source.h"

namespace tidepool::trainer {

// What the data must be.
struct CorpusOptions {
  uint64_t vocab = 256;               // the model's; ids must be smaller
  double validation_share = 0.1;      // of a single file without a sibling to hold out
  OutputPlaces outputs = {};          // of the run itself: no data
  BpeTokenizer* tokenizer = nullptr;  // of text; null: one token a byte
};

struct Corpus {
  TokenSource train, validation;  // share no token
  // For people: what was found, how it was understood, what is held out.
  std::string description;
};

// `path` is
//   a token file (trainer/data/token_file.h): held out is its sibling, the name with "val" for
//   "train", else the file's last share;
//   a folder with train.bin and val.bin: the same;
//   another folder: its texts without near-duplicates and without the run's own outputs, joined;
//   held out is the one file whose size is nearest to the share; another file: text; held out is
//   its last share.
// Text is tokenized, all of it at once, or is one token a byte; the vocabulary has to hold all of
// the tokenizer's ids, or 256.
// Errors: kFileUnreadable, kDataBad, kUsageError (text with a smaller vocabulary).
Result<Corpus> OpenCorpus(const std::string& path, const CorpusOptions& options);

}  // namespace tidepool::trainer
