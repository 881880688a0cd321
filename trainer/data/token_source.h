// TokenSource: a sequence of token ids with random access: text in memory (one token per byte), ids
// in memory, or part of a token file.
//
// Copies share the text, the ids or the open file. Any number of threads may read. Offsets and
// sizes count tokens.
// Files are read with pread, never mapped: a damaged or truncated file is an error, not a SIGBUS.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

// An open file of unsigned little-endian token ids.
struct TokenFile {
  UniqueFd fd;
  std::string path;
  uint64_t header_bytes = 0;  // before the first token
  uint32_t id_bytes = 2;      // 2 or 4
  uint64_t tokens = 0;
  uint64_t vocab = 0;  // ids must be smaller
};

class TokenSource {
 public:
  TokenSource() = default;  // empty
  explicit TokenSource(std::shared_ptr<const std::string> text)
      : text_(std::move(text)), size_(text_->size()) {}
  explicit TokenSource(std::shared_ptr<const std::vector<uint32_t>> ids)
      : ids_(std::move(ids)), size_(ids_->size()) {}
  explicit TokenSource(std::shared_ptr<const TokenFile> file)
      : file_(std::move(file)), size_(file_->tokens) {}

  uint64_t size() const { return size_; }
  // The text of this part; empty if it is not text. Valid as long as the source, or a copy of it.
  std::string_view text() const {
    return text_ != nullptr ? std::string_view(*text_).substr(begin_, size_) : std::string_view();
  }
  // Tokens [begin, begin + size) of this source. Requires that they exist.
  TokenSource Part(uint64_t begin, uint64_t size) const;
  // Fills `out` with the tokens from `offset` on. Requires offset + out.size() <= size(). Errors:
  // kFileUnreadable (the file cannot be read, or has become shorter), kDataBad (an id beyond the
  // vocabulary; names file and position).
  Status Read(uint64_t offset, std::span<int64_t> out) const;

 private:
  Status ReadFile(uint64_t first_token, std::span<int64_t> out) const;

  // One of the three is set, or none if empty.
  std::shared_ptr<const std::string> text_;
  std::shared_ptr<const std::vector<uint32_t>> ids_;
  std::shared_ptr<const TokenFile> file_;
  uint64_t begin_ = 0, size_ = 0;  // this source's part of it
};

}  // namespace tidepool::trainer
