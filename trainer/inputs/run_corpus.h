// OpenRunCorpus: the data of a run, looked through before anything is contacted: can be read, every
// id known to the model, enough for a batch.
//
// Any thread; torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/data/batch_cursor.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_facts.h"
#include "trainer/inputs/saved_model.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// The data, and what is known of them.
struct RunCorpus {
  Corpus corpus;
  CorpusFacts facts;
  BatchShape shape;  // of this rank's batches
  std::string note;  // run_note.h
};

// Without --data: licence texts that every Debian carries. `from`: the weights that the run begins
// with; null where they are new.
// Errors: kUsageError (a batch that the ranks cannot share; text for a model that reads ids, and no
// tokenizer; a tokenizer with more ids than the model), those of ReadTokenizer (where text is to be
// read, or the tokenizer is named), OpenCorpus and LookThrough, kDataBad (too short for one
// sequence, or, where held-out losses are asked for, what is held out is).
Result<RunCorpus> OpenRunCorpus(const RunOptions& options, const GptShape& shape, uint32_t world,
                                Rank rank, const SavedModel* from = nullptr);

// The directory of the tokenizer that text is read with: that of --tokenizer, else of --from or
// --base where one lies there; empty: text is bytes.
std::string TokenizerOf(const RunOptions& options);

// The first `batches` batches of what is held out, this rank's share of each. Errors: those of
// BatchCursor.
Result<std::vector<Batch>> ReadHeldOut(const RunCorpus& data, uint64_t batches);

}  // namespace tidepool::trainer
