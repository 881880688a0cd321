#include "trainer/checkpoint/stage_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/clock.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kStagePrefix = "tidepool-checkpoint-";

// The folder, locked; invalid if another process uses it, or it is no folder of this user's.
UniqueFd Locked(const std::filesystem::path& path, struct stat* facts) {
  UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const bool ours = folder.valid() && fstat(folder.get(), facts) == 0 && facts->st_uid == geteuid();
  if (!ours || flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return UniqueFd();
  return folder;
}

void RemoveLeftOver(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kStagePrefix)) continue;
    struct stat facts {};
    const UniqueFd lock = Locked(entry->path(), &facts);
    // One that was made a moment ago may not be locked yet.
    if (!lock.valid() || WallSeconds() - facts.st_mtime < kStageLeftOverSeconds) continue;
    std::error_code failed;  // it may stay then
    std::filesystem::remove_all(entry->path(), failed);
  }
}

}  // namespace

Result<StageFolder> MakeStage() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  std::string path = folder.string() + "/" + kStagePrefix + "XXXXXX";
  if (error || mkdtemp(path.data()) == nullptr)
    return Status(ErrorId::kSaveFailed, "cannot make a directory for temporary files: " +
                                            (error ? error.message() : std::strerror(errno)))
        .Where(error ? "TMPDIR" : path)
        .Fix("set TMPDIR to a directory in which this user may write");

  RemoveLeftOver(folder);
  struct stat facts {};
  // Without a lock it works as well, but may count as left over while a writer uses it.
  return StageFolder{path, Locked(path, &facts)};
}

}  // namespace tidepool::trainer
