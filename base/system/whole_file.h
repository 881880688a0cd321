// WholeFile: a file that is there as a whole under its name, or as it was before.
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
// on the disk; the mode of a file that was there stays. What a process that was killed has left
// beside it is used up by the next one. Links are followed; what is no regular file (a pipe, a
// device) is written as it is. One thread.
class WholeFile {
 public:
  // Errors: kFileWriteFailed (names the file).
  static Result<WholeFile> Begin(const std::string& path);
  // Without Commit the former file stays as it was, and nothing lies beside it.
  ~WholeFile();
  WholeFile(WholeFile&& other) noexcept;
  WholeFile& operator=(WholeFile&&) = delete;

  // Both: errors: kFileWriteFailed (names the file); make no call after one.
  Status Write(std::span<const std::byte> bytes);
  Status Commit();

 private:
  explicit WholeFile(std::string path) : path_(std::move(path)) {}
  Status Failed(int error) const;

  std::string path_;    // as the caller gave it
  std::string file_;    // where its links lead
  std::string beside_;  // what is written; empty: the file itself is, or it has its name already
  UniqueFd fd_;
};

// Writes the parts one behind the other as a WholeFile. Errors: kFileWriteFailed.
Status WriteWholeFile(const std::string& path,
                      const std::vector<std::span<const std::byte>>& parts);
Status WriteWholeFile(const std::string& path, const std::string& text);

}  // namespace tidepool
