// BpeTokenizer: byte-level byte pair encoding as in GPT-2 (Sennrich et al. 2016, on bytes):
// converts text to token ids, and back to bytes.
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
  // Errors: kDataBad (a byte, or the result of a merge, has no token).
  static Result<BpeTokenizer> Make(const TokenizerFile& file);
  ~BpeTokenizer();
  BpeTokenizer(BpeTokenizer&&) noexcept;
  BpeTokenizer& operator=(BpeTokenizer&&) noexcept;

  // All ids are smaller.
  uint64_t vocab() const { return tokens_.size(); }
  // The token that ends a text; nullopt without <|endoftext|>.
  std::optional<uint32_t> end_of_text() const { return end_of_text_; }
  // Appends the ids of `text`.
  void Encode(std::string_view text, std::vector<uint32_t>* ids);
  // The bytes of a token; empty for an unknown id.
  std::string_view Bytes(uint64_t id) const;

 private:
  struct Pattern;  // GPT-2's rule for boundaries that merges never cross
  struct Merge {
    uint32_t rank = 0, id = 0;
  };
  struct Symbol;

  explicit BpeTokenizer(const TokenizerFile& file);
  void EncodePlain(std::string_view text, std::vector<uint32_t>* ids);
  void EncodePiece(std::string_view piece, std::vector<uint32_t>* ids);
  std::vector<uint32_t> Merged(std::string_view piece) const;
  const Merge* MergeOf(uint32_t left, uint32_t right) const;

  std::unique_ptr<Pattern> pattern_;
  std::vector<std::string> tokens_;  // by id
  std::vector<TokenizerFile::Added> added_;
  std::optional<uint32_t> end_of_text_;
  bool prefix_space_ = false;
  uint32_t of_byte_[256] = {};
  std::unordered_map<uint64_t, Merge> merges_;  // by the ids of both sides
  std::unordered_map<std::string, std::vector<uint32_t>> known_;
};

}  // namespace tidepool::trainer
