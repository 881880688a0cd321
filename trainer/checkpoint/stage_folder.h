// StageFolder: a folder under TMPDIR in which a trainer leaves the files that the writer of a
// checkpoint takes over.
//
// Any thread. The writer removes the folder. What a killed trainer or writer leaves is removed by
// the next MakeStage of the same user: each folder is locked (flock) by the processes that use it,
// and the lock ends with them.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

struct StageFolder {
  std::string path;
  UniqueFd lock;  // an open folder, to be passed to the writer
};

// A folder that nobody has used for this long, and that no process has locked, is left over.
inline constexpr int64_t kStageLeftOverSeconds = 60;

// Makes a folder with mode 0700, and removes those that are left over beside it. Errors:
// kSaveFailed, with the advice to set TMPDIR.
Result<StageFolder> MakeStage();

}  // namespace tidepool::trainer
