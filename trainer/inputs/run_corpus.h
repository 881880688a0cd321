// OpenRunCorpus: a run's data, checked before anything is contacted: readable, all ids known to the
// model, enough for a batch.
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

// The data, and their properties.
struct RunCorpus {
  Corpus corpus;
  CorpusFacts facts;
  BatchShape shape;  // of this rank's batches
  std::string note;  // run_note.h
};

// Default without --data: licence texts present on every Debian. `from`: the initial weights; null
// for new ones. Errors: kUsageError (a batch that the ranks cannot share; text for a model that
// reads ids, without a tokenizer; a tokenizer with more ids than the model), those of ReadTokenizer
// (if text is to be read, or the tokenizer is named), OpenCorpus and LookThrough, kDataBad (too
// short for one sequence; with held-out losses, also of the held-out part).
Result<RunCorpus> OpenRunCorpus(const RunOptions& options, const GptShape& shape, uint32_t world,
                                Rank rank, const SavedModel* from = nullptr);

// The directory of the text tokenizer: that of --tokenizer, else --from or --base if it holds one;
// empty: text is bytes.
std::string TokenizerOf(const RunOptions& options);

// The first `batches` held-out batches, this rank's share of each. Errors: those of BatchCursor.
Result<std::vector<Batch>> ReadHeldOut(const RunCorpus& data, uint64_t batches);

}  // namespace tidepool::trainer
