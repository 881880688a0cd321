#include "trainer/inputs/run_corpus.h"

#include <optional>
#include <utility>

#include "base/planted.h"
#include "trainer/data/bpe_tokenizer.h"
#include "trainer/data/tokenizer_file.h"
#include "trainer/inputs/run_files.h"
#include "trainer/run/expert_plan.h"
#include "trainer/run/resuming/run_note.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kDefaultData = "/usr/share/common-licenses";

Status OfData(Status bad, const std::string& path) {
  return bad.where().empty() ? std::move(bad).Where("--data " + path) : bad;
}

// Checks that both parts hold at least one sequence.
Status CheckLength(const RunCorpus& data, bool evaluates) {
  TP_RETURN_IF_ERROR(BatchCursor::Make(data.corpus.train, data.shape).status());
  if (!evaluates || TP_PLANTED("trainer.held_out_unchecked")) return {};
  const Status held_out = BatchCursor::Make(data.corpus.validation, data.shape).status();
  if (held_out.ok()) return {};
  return Status(held_out.id(), "what is held out is too short: " + held_out.what())
      .Fix("give more text, a smaller --context, or --eval-every 0");
}

// The configuration of the initial model, or of the adapters' base; new models have none.
Result<ModelConfig> ConfigOf(const RunOptions& options, const SavedModel* from) {
  if (from != nullptr) return from->config();
  if (options.adapters.base.empty()) return ModelConfig();
  return ReadModelConfig(DirectoryOfWeights(options.adapters.base));
}

// Foreign weights were trained on a tokenizer's ids; bytes of text would be read as ids with other
// meanings. For our own weights this is unknown: a run on text may have a large vocabulary.
Status CheckTokens(const Corpus& corpus, const RunOptions& options, const SavedModel* from) {
  if (corpus.train.text().empty()) return {};
  TP_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(options, from));
  if (config.names == WeightNames::kOurs) return {};
  const std::string& model = from != nullptr ? from->path() : options.adapters.base;
  return Status(ErrorId::kUsageError, "the model of " + model + " reads token ids, not text")
      .Why("each byte would be taken for one of its " + std::to_string(config.shape.vocab) + " ids")
      .Fix(
          "tokenize the text with the model's tokenizer, and give the token file of llm.c or "
          "nanoGPT (train.bin) with --data; or train the model from Python (docs/python.md)");
}

// Does nothing if `place` is empty.
Status OpenTokenizer(const std::string& place, std::optional<BpeTokenizer>* tokenizer) {
  if (place.empty()) return {};
  TP_ASSIGN_OR_RETURN(const TokenizerFile file, ReadTokenizer(place));
  TP_ASSIGN_OR_RETURN(*tokenizer, BpeTokenizer::Make(file));
  return {};
}

}  // namespace

std::string TokenizerOf(const RunOptions& options) {
  if (!options.data.tokenizer.empty()) return options.data.tokenizer;
  for (const std::string& model : {options.model.from, options.adapters.base}) {
    const std::string place = model.empty() ? "" : DirectoryOfWeights(model);
    if (!place.empty() && !TokenizerFilesIn(place).empty()) return place;
  }
  return {};
}

Result<RunCorpus> OpenRunCorpus(const RunOptions& options, const GptShape& shape, uint32_t world,
                                Rank rank, const SavedModel* from) {
  const std::string path = options.data.path.empty() ? kDefaultData : options.data.path;
  RunCorpus data;
  data.shape = {.sequences = options.data.batch,
                .tokens = options.data.context > 0 ? options.data.context : shape.context,
                .rank = rank,
                .world = world,
                .seed = options.model.seed};
  TP_RETURN_IF_ERROR(CheckBatch(data.shape));

  // A tokenizer that is merely beside the model may be unsupported, if nobody needs it.
  std::optional<BpeTokenizer> tokenizer;
  const Status unread = OpenTokenizer(TokenizerOf(options), &tokenizer);
  if (!unread.ok() && !options.data.tokenizer.empty()) return unread;

  Result<Corpus> corpus = OpenCorpus(path, {.vocab = shape.vocab,
                                            .outputs = OutputsOf(options.output),
                                            .tokenizer = tokenizer ? &*tokenizer : nullptr});
  if (!corpus.ok()) return OfData(corpus.status(), path);
  data.corpus = std::move(corpus).value();
  if (!unread.ok() && !data.corpus.train.text().empty()) return unread;
  if (Status text = CheckTokens(data.corpus, options, from); !text.ok())
    return OfData(std::move(text), path);
  if (Status length = CheckLength(data, options.training.eval_every > 0); !length.ok())
    return OfData(std::move(length), path);

  Result<CorpusFacts> facts = LookThrough(data.corpus);
  if (!facts.ok()) return OfData(facts.status(), path);
  data.facts = *facts;

  NotedInputs noted{.context = data.shape.tokens,
                    .facts = data.facts,
                    .from = {},
                    .moe = NoteOfExperts(shape, options.model.moe)};
  if (from != nullptr) {
    TP_ASSIGN_OR_RETURN(noted.from, from->Fingerprint());
  }
  data.note = MakeRunNote(options, noted);
  return data;
}

Result<std::vector<Batch>> ReadHeldOut(const RunCorpus& data, uint64_t batches) {
  std::vector<Batch> read;
  if (batches == 0) return read;
  BatchShape shape = data.shape;
  shape.shuffled = false;
  TP_ASSIGN_OR_RETURN(BatchCursor cursor, BatchCursor::Make(data.corpus.validation, shape));

  for (uint64_t i = 0; i < batches; ++i) {
    TP_ASSIGN_OR_RETURN(Batch batch, cursor.Next());
    read.push_back(std::move(batch));
  }
  return read;
}

}  // namespace tidepool::trainer
