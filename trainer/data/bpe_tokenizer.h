// BpeTokenizer: byte pair encoding as in GPT-2 and Llama (Sennrich et al. 2016), on bytes or on
// letters: converts text to token ids, and back to bytes.
//
// One thread at a time: encoded pieces are cached. Any bytes can be encoded; invalid UTF-8 becomes
// tokens of single bytes and their merges.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "trainer/data/tokenizer_file.h"

namespace tidepool::trainer {

class BpeTokenizer {
 public:
  // Errors: kDataBad (a byte, or the result of a merge, has no token; the pattern is none).
  static Result<BpeTokenizer> Make(const TokenizerFile& file);
  ~BpeTokenizer();
  BpeTokenizer(BpeTokenizer&&) noexcept;
  BpeTokenizer& operator=(BpeTokenizer&&) noexcept;

  // All ids are smaller.
  uint64_t vocab() const { return tokens_.size(); }
  // The token that ends a text: <|endoftext|>, <|end_of_text|> or </s>; nullopt without one.
  std::optional<uint32_t> end_of_text() const { return end_of_text_; }
  // The token that stands before a text, as a model of Llama's kind expects it; Encode leaves it
  // out, since it knows no texts.
  std::optional<uint32_t> begin_of_text() const { return begin_of_text_; }
  // Appends the ids of `text`.
  void Encode(std::string_view text, std::vector<uint32_t>* ids);
  // The bytes of a token; empty for an unknown id.
  std::string_view Bytes(uint64_t id) const;

 private:
  struct Pattern;  // the rule for boundaries that merges never cross
  struct Merge {
    uint32_t rank = 0, id = 0;
  };
  struct Symbol;

  BpeTokenizer(const TokenizerFile& file, std::unique_ptr<Pattern> pattern);
  void EncodePart(std::string_view part, bool is_first, std::vector<uint32_t>* ids);
  void EncodePlain(std::string_view text, std::vector<uint32_t>* ids);
  void EncodeWords(std::string_view text, std::vector<uint32_t>* ids);
  void EncodePiece(std::string_view piece, std::vector<uint32_t>* ids);
  std::vector<Symbol> SymbolsOf(std::string_view piece) const;
  std::vector<uint32_t> Merged(std::string_view piece) const;
  const Merge* MergeOf(uint32_t left, uint32_t right) const;

  std::unique_ptr<Pattern> pattern_;
  std::vector<std::string> tokens_;  // by id
  std::vector<TokenizerFile::Added> added_;
  std::optional<uint32_t> end_of_text_;
  std::optional<uint32_t> begin_of_text_;
  SpacePrefix prefix_ = SpacePrefix::kNone;
  bool whole_pieces_ = false, of_letters_ = false;
  bool by_words_ = true;  // of letters: no merge has a space behind another letter
  uint32_t of_byte_[256] = {};
  std::unordered_map<std::string, uint32_t> wholes_;  // tokens that a piece or a letter may be
  std::unordered_map<uint64_t, Merge> merges_;        // by the ids of both sides
  std::unordered_map<std::string, std::vector<uint32_t>> known_;
};

}  // namespace tidepool::trainer
