// BaseNames: what the base of adapters is called by its bytes: its frozen chunks one by one, for
// the server, and its file, for those who use the adapters later. Either takes a pass over the
// base; what was found is remembered in the run's folder.
//
// One thread at a time. The names are remembered for one file as it was found (FileStamp) and one
// layout: where either is another, or what was written is damaged, the base is hashed again.
// memserver takes no bytes under a name that is not theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/formats/content_hash.h"
#include "base/status.h"
#include "trainer/inputs/frozen_base.h"
#include "trainer/inputs/weights_file.h"

namespace tidepool::trainer {

inline constexpr const char* kBaseNamesFile = "base.names";  // in the directory of --out

class BaseNames {
 public:
  // `folder`: of the run; empty: nothing is remembered. What is remembered there is read;
  // `wall_seconds` is the time now.
  // A file that was changed within the last seconds is not remembered: one more change may not show
  // in its times.
  BaseNames(std::shared_ptr<const FrozenBase> base, const std::string& folder,
            int64_t wall_seconds);

  // Names all frozen chunks, in order. Errors: those of FrozenBase::HashChunks.
  Result<std::vector<ContentHash>> Chunks();
  // Hashes the whole file. Errors: kSafetensorsBad; kDataBad (its tensors are no longer those that
  // Chunks has named).
  Result<ContentHash> File();
  // File for the metadata of adapters: 64 digits; empty where that fails, with a line in the log.
  // They are worth more than its name.
  std::string FileOrNothing();
  // Writes what is known to the folder, for the next process. Best effort: what cannot be written
  // is hashed again.
  void Remember() const;

 private:
  void Recall();
  std::string Text() const;

  const std::shared_ptr<const FrozenBase> base_;
  const std::string path_;  // empty: none
  FileStamp stamp_;
  bool is_settled_ = false;  // any later change shows in the stamp
  std::vector<ContentHash> chunks_;
  std::optional<ContentHash> file_;
};

}  // namespace tidepool::trainer
