#include "trainer/data/corpus.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/data/text_files.h"
#include "trainer/data/token_file.h"

namespace tidepool::trainer {
namespace {

namespace fs = std::filesystem;

std::string Count(uint64_t tokens, const char* unit = "tokens") {
  return std::to_string(tokens) + " " + unit;
}

// The unit of text before tokenization.
const char* UnitOf(const CorpusOptions& options) {
  return options.tokenizer != nullptr ? "bytes" : "tokens";
}
const char* ReadHow(const CorpusOptions& options) {
  return options.tokenizer != nullptr ? "" : ", one token a byte";
}

// Holds out the last share of `all`.
Corpus Split(const TokenSource& all, double share, const std::string& what,
             const char* unit = "tokens") {
  const auto held_out = static_cast<uint64_t>(static_cast<double>(all.size()) * share);
  Corpus corpus;
  corpus.train = all.Part(0, all.size() - held_out);
  corpus.validation = all.Part(all.size() - held_out, held_out);
  corpus.description = what + "; its last " + Count(held_out, unit) + " are held out, " +
                       Count(corpus.train.size(), unit) + " to train on";
  return corpus;
}

// "data/train.bin" -> "data/val.bin", when that exists.
std::optional<std::string> ValidationSibling(const std::string& path) {
  const fs::path file(path);
  std::string name = file.filename().string();
  const size_t train = name.rfind("train");
  if (train == std::string::npos) return std::nullopt;
  const fs::path sibling = file.parent_path() / name.replace(train, 5, "val");
  return fs::is_regular_file(sibling) ? std::optional(sibling.string()) : std::nullopt;
}

Result<Corpus> FromTokenFile(const OpenedTokenFile& opened, const CorpusOptions& options) {
  const std::string what = opened.form + " in '" + opened.file->path + "'";
  const TokenSource all(opened.file);
  const auto sibling = ValidationSibling(opened.file->path);
  if (!sibling) return Split(all, options.validation_share, what);

  TP_ASSIGN_OR_RETURN(const auto validation, OpenTokenFile(*sibling, options.vocab));
  if (!validation)
    return Status(ErrorId::kDataBad, "'" + *sibling + "' is no token file, but '" +
                                         opened.file->path + "' beside it is");

  Corpus corpus;
  corpus.train = all;
  corpus.validation = TokenSource(validation->file);
  corpus.description = what + ", " + Count(all.size()) + "; held out: '" + *sibling + "', " +
                       Count(corpus.validation.size());
  return corpus;
}

Status CheckVocab(const std::string& path, const CorpusOptions& options) {
  const BpeTokenizer* tokenizer = options.tokenizer;
  if (tokenizer != nullptr && tokenizer->vocab() > options.vocab) {
    return Status(ErrorId::kUsageError, "the tokenizer has " + std::to_string(tokenizer->vocab()) +
                                            " ids, the model's vocabulary " +
                                            std::to_string(options.vocab))
        .Fix(
            "give the tokenizer that the model was made for, or a preset with a larger vocabulary");
  }

  if (tokenizer != nullptr || options.vocab >= 256) return {};
  return Status(ErrorId::kUsageError,
                "'" + path + "' is text, one token a byte, but the model's vocabulary is " +
                    std::to_string(options.vocab))
      .Fix("choose a preset with a vocabulary of at least 256");
}

TokenSource Tokenized(const TokenSource& text, BpeTokenizer* tokenizer) {
  auto ids = std::make_shared<std::vector<uint32_t>>();
  tokenizer->Encode(text.text(), ids.get());
  return TokenSource(std::shared_ptr<const std::vector<uint32_t>>(std::move(ids)));
}

// Tokenizes both parts separately, so that no token spans them.
Corpus Tokenized(Corpus corpus, BpeTokenizer* tokenizer) {
  if (tokenizer == nullptr) return corpus;
  corpus.train = Tokenized(corpus.train, tokenizer);
  corpus.validation = Tokenized(corpus.validation, tokenizer);
  corpus.description += "; tokenized: " + Count(corpus.train.size()) + " to train on, " +
                        Count(corpus.validation.size()) + " held out";
  return corpus;
}

Result<Corpus> FromTextFile(const std::string& path, const CorpusOptions& options) {
  TP_RETURN_IF_ERROR(CheckVocab(path, options));
  TP_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  if (text.empty()) return Status(ErrorId::kDataBad, "'" + path + "' is empty");
  if (const size_t at = text.find('\0'); at != std::string::npos) {
    return Status(ErrorId::kDataBad, "'" + path + "' is not text")
        .Why("byte " + std::to_string(at) + " is NUL")
        .Fix(
            "give a nanoGPT token file a name that ends in .bin; convert UTF-16 with iconv -t "
            "UTF-8");
  }

  const TokenSource all(std::make_shared<const std::string>(std::move(text)));
  return Tokenized(Split(all, options.validation_share, "text in '" + path + "'" + ReadHow(options),
                         UnitOf(options)),
                   options.tokenizer);
}

// The index of the file whose size is nearest to the share of the total.
size_t ChooseHeldOut(const std::vector<TextFile>& files, double share) {
  double total = 0;
  for (const TextFile& file : files) total += static_cast<double>(file.text.size());
  const auto distance = [&](const TextFile& file) {
    return std::abs(static_cast<double>(file.text.size()) - share * total);
  };
  const auto nearest = std::min_element(
      files.begin(), files.end(),
      [&](const TextFile& a, const TextFile& b) { return distance(a) < distance(b); });
  return static_cast<size_t>(nearest - files.begin());
}

Result<Corpus> FromTextFolder(const std::string& path, const CorpusOptions& options) {
  TP_RETURN_IF_ERROR(CheckVocab(path, options));
  TP_ASSIGN_OR_RETURN(const TextFolder folder, ReadTextFiles(path, options.outputs));

  std::string what =
      Counted(folder.kept.size(), "text file") + " in '" + path + "'" + ReadHow(options);
  if (!folder.repeats.empty())
    what += " (" + std::to_string(folder.repeats.size()) + " more left out as near-duplicates)";
  if (folder.skipped > 0)
    what += " (" + std::to_string(folder.skipped) + " more left out as empty or binary)";
  if (folder.own > 0)
    what += " (" + std::to_string(folder.own) + " more left out as outputs of this run)";

  if (folder.kept.size() == 1) {
    const TokenSource all(std::make_shared<const std::string>(folder.kept[0].text));
    return Tokenized(Split(all, options.validation_share, what, UnitOf(options)),
                     options.tokenizer);
  }

  const size_t held_out = ChooseHeldOut(folder.kept, options.validation_share);
  std::string joined;
  for (size_t i = 0; i < folder.kept.size(); ++i) {
    if (i != held_out) joined += folder.kept[i].text + "\n";
  }

  Corpus corpus;
  corpus.train = TokenSource(std::make_shared<const std::string>(std::move(joined)));
  corpus.validation = TokenSource(std::make_shared<const std::string>(folder.kept[held_out].text));
  corpus.description = what + ", " + Count(corpus.train.size(), UnitOf(options)) +
                       " to train on; held out: '" + folder.kept[held_out].path + "', " +
                       Count(corpus.validation.size(), UnitOf(options));
  return Tokenized(std::move(corpus), options.tokenizer);
}

}  // namespace

Result<Corpus> OpenCorpus(const std::string& path, const CorpusOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return Status(ErrorId::kFileUnreadable, "'" + path + "' does not exist");

  std::string file = path;
  if (fs::is_directory(status)) {
    file = (fs::path(path) / "train.bin").string();
    if (!fs::is_regular_file(file) || !ValidationSibling(file))
      return FromTextFolder(path, options);
  } else if (!fs::is_regular_file(status)) {
    return Status(ErrorId::kDataBad, "'" + path + "' is neither a file nor a folder");
  }

  TP_ASSIGN_OR_RETURN(const auto tokens, OpenTokenFile(file, options.vocab));
  return tokens ? FromTokenFile(*tokens, options) : FromTextFile(path, options);
}

}  // namespace tidepool::trainer
