// BaseNames: the hashes that name an adapter's base: one per frozen chunk, for the server, and one
// of the file, for later users of the adapters. Each takes a pass over the base, so they are cached
// in the run's folder; of the ranks that share it, one makes the chunks' names while the others
// wait.
//
// One thread at a time. The cache is valid for one state of one file (FileStamp) and one layout. If
// either has changed, or the record is damaged, the base is hashed again. A wrong name does no
// harm: memserver refuses bytes with another hash.
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
  // `folder`: the run's; empty: no cache. Reads the cache there. `wall_seconds`: the present time.
  // A file changed within the last seconds is not cached, because a further change may not show in
  // its times.
  BaseNames(std::shared_ptr<const FrozenBase> base, const std::string& folder,
            int64_t wall_seconds);

  // Names all frozen chunks, in order; blocks while another rank that shares the folder makes the
  // names. Errors: those of FrozenBase::HashChunks.
  Result<std::vector<ContentHash>> Chunks();
  // Hashes the whole file. Errors: kSafetensorsBad; kDataBad (its tensors have changed since Chunks
  // named them).
  Result<ContentHash> File();
  // Like File, as 64 digits for the adapters' metadata. On failure returns "" and logs a line,
  // because the trained adapters are worth more than the name of their base.
  std::string FileOrNothing();
  // Writes the known names to the folder, for the next process. Best effort: names that cannot be
  // written are hashed again.
  void Remember() const;

 private:
  void Recall();
  std::string Text() const;

  const std::shared_ptr<const FrozenBase> base_;
  const std::string folder_, path_;  // empty: none
  FileStamp stamp_;
  bool is_settled_ = false;  // any later change will show in the stamp
  std::vector<ContentHash> chunks_;
  std::optional<ContentHash> file_;
};

}  // namespace tidepool::trainer
