// ReadTextFiles: the texts of a folder, without near-duplicates.
//
// Any thread. Deterministic: files are read in path order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/data/own_outputs.h"

namespace tidepool::trainer {

// All text is held in memory; more than this should be tokenized into a file first.
inline constexpr uint64_t kTextBytesMax = uint64_t{4} << 30;

// One file.
struct TextFile {
  std::string path;
  std::string text;
};

// The content of a folder.
struct TextFolder {
  std::vector<TextFile> kept;        // by path
  std::vector<std::string> repeats;  // paths of files that mostly repeat an earlier one
  uint64_t skipped = 0;              // empty files, and files with NUL bytes
  uint64_t own = 0;                  // files written by the run itself
};

// Errors: kFileUnreadable, kDataBad (more than kTextBytesMax).
Result<std::string> ReadTextFile(const std::string& path);

// Reads regular files below `folder` (does not follow symbolic links; skips hidden folders and
// `outputs`). A file is a repeat if more than half of its shingles, runs of five words, occur in
// one earlier file that was kept (Broder's containment). Errors: kFileUnreadable (names the file),
// kDataBad (no text at all, or more than kTextBytesMax).
Result<TextFolder> ReadTextFiles(const std::string& folder, const OutputPlaces& outputs = {});

}  // namespace tidepool::trainer
