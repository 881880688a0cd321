// WholeFile: replaces a file atomically: its name has either the whole new file or the former one.
//
// Any thread; one writer of a path at a time.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool {

// A file that is written piece by piece, beside `path`, and gets that name when it is complete and
// on the disk; it takes the mode of an existing file. A leftover of a killed process is overwritten
// by the next one. Links are followed; anything other than a regular file (a pipe, a device) is
// written in place. One thread.
class WholeFile {
 public:
  // Begins a file. Errors: kFileWriteFailed (names the file).
  static Result<WholeFile> Begin(const std::string& path);
  // Without Commit the former file is unchanged, and nothing is left beside it.
  ~WholeFile();
  WholeFile(WholeFile&& other) noexcept;
  WholeFile& operator=(WholeFile&&) = delete;

  // Errors of both: kFileWriteFailed (names the file); make no call after one.
  Status Write(std::span<const std::byte> bytes);
  Status Commit();

 private:
  explicit WholeFile(std::string path) : path_(std::move(path)) {}
  Status Failed(int error) const;

  std::string path_;    // as given by the caller
  std::string file_;    // target of its links
  std::string beside_;  // file being written; empty: it is written in place, or is renamed already
  UniqueFd fd_;
};

// Writes the parts consecutively as a WholeFile. Errors: kFileWriteFailed.
Status WriteWholeFile(const std::string& path,
                      const std::vector<std::span<const std::byte>>& parts);
Status WriteWholeFile(const std::string& path, const std::string& text);

}  // namespace tidepool
