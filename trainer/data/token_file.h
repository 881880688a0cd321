// OpenTokenFile, WriteTokenFile: files with token ids.
//
//   llm.c     256 little-endian int32 of header, then the ids. header[0] is 20240520 with version 1
//             (16-bit ids, GPT-2) or 20240801 with version 7 (32-bit ids, Llama 3); header[1] the
//             version, header[2] the number of tokens.
//  nanoGPT   no header: 16-bit ids from the first byte on; recognised by the ending ".bin" only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "trainer/data/token_source.h"

namespace tidepool::trainer {

// The file and its format.
struct OpenedTokenFile {
  std::shared_ptr<const TokenFile> file;
  std::string form;  // for people: "llm.c tokens (uint16)"
};

// nullopt if `path` is not a token file (then it is text). `vocab` bounds the ids when they are
// read. Errors: kFileUnreadable; kDataBad (unknown version, size that does not match the header,
// odd size, no token).
Result<std::optional<OpenedTokenFile>> OpenTokenFile(const std::string& path, uint64_t vocab);

// Writes `ids` in llm.c's format: in 16 bits if `vocab` allows it, else in 32. The file appears
// under its name when it is complete. Errors: kUsageError (more ids than the header can count),
// kFileWriteFailed.
Status WriteTokenFile(const std::string& path, std::span<const uint32_t> ids, uint64_t vocab);

}  // namespace tidepool::trainer
