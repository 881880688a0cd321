// BaseNames: the names of an adapter's base, made from its bytes: one for each frozen chunk, for
// the server, and one for the file, for those who use the adapters later. Each takes a pass over
// the base, so they are remembered in the run's folder, and of the ranks that share it one makes
// those of the chunks while the others wait for it.
//
// One thread at a time. The names are remembered for one state of one file (FileStamp) and one
// layout. Where either has changed, or the record is damaged, the base is hashed again. A wrong
// name does no harm: memserver refuses bytes whose hash is another.
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
  // `folder`: the run's; empty: nothing is remembered. Reads what is remembered there.
  // `wall_seconds`: the time now. A file that was changed within the last seconds is not
  // remembered, because one more change may not show in its times.
  BaseNames(std::shared_ptr<const FrozenBase> base, const std::string& folder,
            int64_t wall_seconds);

  // Names all frozen chunks, in order; blocks while another rank that shares the folder makes them.
  // Errors: those of FrozenBase::HashChunks.
  Result<std::vector<ContentHash>> Chunks();
  // Hashes the whole file. Errors: kSafetensorsBad; kDataBad (its tensors are no longer those that
  // Chunks has named).
  Result<ContentHash> File();
  // As File, as 64 digits for the metadata of adapters. A failure gives an empty text and a line in
  // the log, because the trained adapters are worth more than the name of their base.
  std::string FileOrNothing();
  // Writes what is known to the folder, for the next process. Best effort: what cannot be written
  // is hashed again.
  void Remember() const;

 private:
  void Recall();
  std::string Text() const;

  const std::shared_ptr<const FrozenBase> base_;
  const std::string folder_, path_;  // empty: none
  FileStamp stamp_;
  bool is_settled_ = false;  // any later change shows in the stamp
  std::vector<ContentHash> chunks_;
  std::optional<ContentHash> file_;
};

}  // namespace tidepool::trainer
