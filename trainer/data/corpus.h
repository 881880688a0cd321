// Corpus: a run's training and held-out data, from the path in --data.
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

// Requirements and options of the data.
struct CorpusOptions {
  uint64_t vocab = 256;               // the model's; ids must be smaller
  double validation_share = 0.1;      // of a single file without a sibling to hold out
  OutputPlaces outputs = {};          // the run's own outputs, which are not data
  BpeTokenizer* tokenizer = nullptr;  // for text; null: one token per byte
};

struct Corpus {
  TokenSource train, validation;  // disjoint
  // For people: what was found, its format, what is held out.
  std::string description;
};

// `path` is one of
//  a token file (trainer/data/token_file.h): its sibling is held out, the name with "val" for
//  "train", else the file's last share;
//  a folder with train.bin and val.bin: the same;
//  another folder: its texts, joined, without near-duplicates and the run's own outputs; the one
//  file whose size is nearest to the share is held out; another file: text; its last share is
//  held out.
// Text is tokenized, all at once, or has one token per byte; the vocabulary has to hold all of the
// tokenizer's ids, or 256. Errors: kFileUnreadable, kDataBad, kUsageError (text with a smaller
// vocabulary).
Result<Corpus> OpenCorpus(const std::string& path, const CorpusOptions& options);

}  // namespace tidepool::trainer
