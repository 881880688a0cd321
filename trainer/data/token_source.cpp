#include "trainer/data/token_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

// Reads all of `bytes` from `position`, or fails.
Status ReadFully(const TokenFile& file, uint64_t position, std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t got =
        pread(file.fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(position));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Status(ErrorId::kFileUnreadable, "reading '" + file.path + "' failed")
          .Why(std::strerror(errno));

    if (got == 0) {
      return Status(ErrorId::kFileUnreadable, "'" + file.path + "' ends at byte " +
                                                  std::to_string(position) +
                                                  ", before its last token")
          .Why("it has become shorter since it was opened");
    }

    position += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

uint64_t IdAt(const uint8_t* bytes, uint32_t id_bytes) {
  uint64_t id = 0;
  for (uint32_t i = 0; i < id_bytes; ++i) id |= uint64_t{bytes[i]} << (8 * i);
  return id;
}

}  // namespace

TokenSource TokenSource::Part(uint64_t begin, uint64_t size) const {
  TP_CHECK(begin <= size_ && size <= size_ - begin, "the part lies within the source");
  TokenSource part = *this;
  part.begin_ += begin;
  part.size_ = size;
  return part;
}

Status TokenSource::Read(uint64_t offset, std::span<int64_t> out) const {
  TP_CHECK(offset <= size_ && out.size() <= size_ - offset, "the tokens lie within the source");
  if (out.empty()) return {};
  if (file_ != nullptr) return ReadFile(begin_ + offset, out);
  if (ids_ != nullptr) {
    std::copy_n(ids_->begin() + static_cast<int64_t>(begin_ + offset), out.size(), out.begin());
    return {};
  }

  const char* text = text_->data() + begin_ + offset;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(text[i]);
  return {};
}

Status TokenSource::ReadFile(uint64_t first_token, std::span<int64_t> out) const {
  std::vector<uint8_t> bytes(out.size() * file_->id_bytes);
  TP_RETURN_IF_ERROR(ReadFully(*file_, file_->header_bytes + first_token * file_->id_bytes, bytes));

  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t id = IdAt(bytes.data() + i * file_->id_bytes, file_->id_bytes);
    if (id >= file_->vocab) {
      return Status(ErrorId::kDataBad, "token " + std::to_string(first_token + i) + " of '" +
                                           file_->path + "' has id " + std::to_string(id) +
                                           ", but the model knows ids below " +
                                           std::to_string(file_->vocab))
          .Where("byte " +
                 std::to_string(file_->header_bytes + (first_token + i) * file_->id_bytes))
          .Fix("choose a preset with a larger vocabulary, or tokenise the text for this one");
    }

    out[i] = static_cast<int64_t>(id);
  }
  return {};
}

}  // namespace tidepool::trainer
