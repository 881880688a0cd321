#include "base/system/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/planted.h"
#include "base/unique_fd.h"

namespace tidepool {
namespace {

using Parts = std::vector<std::span<const std::byte>>;

// Always the same name, so that no killed process leaves a second one.
constexpr const char* kBeside = ".new";

Status Failed(const std::string& path, int error) {
  return Status(ErrorId::kFileWriteFailed, "cannot write " + path)
      .Where(path)
      .Why(std::strerror(error));
}

// 0, or errno.
int WriteAll(int fd, const Parts& parts) {
  for (std::span<const std::byte> bytes : parts) {
    while (!bytes.empty()) {
      const ssize_t n = write(fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return n < 0 ? errno : EIO;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  return 0;
}

int WriteInPlace(const std::string& path, const Parts& parts) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  return fd.valid() ? WriteAll(fd.get(), parts) : errno;
}

// `mode`: of the former file; 0: there is none.
int WriteBeside(const std::string& beside, mode_t mode, const Parts& parts) {
  const UniqueFd fd(
      open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return errno;
  if (const int error = WriteAll(fd.get(), parts); error != 0) return error;
  if (mode != 0 && fchmod(fd.get(), mode) != 0) return errno;
  return fsync(fd.get()) == 0 ? 0 : errno;
}

// Brings the new name to the disk too. A file system that cannot do that has done what it can.
void SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) static_cast<void>(fsync(fd.get()));
}

// Where a link leads; the path itself where nothing is there yet.
std::string Followed(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) != nullptr ? real : path;
}

}  // namespace

Status WriteWholeFile(const std::string& path, const Parts& parts) {
  const std::string file = Followed(path);
  struct stat former {};
  const bool is_there = stat(file.c_str(), &former) == 0;
  if ((is_there && !S_ISREG(former.st_mode)) || TP_PLANTED("base.file_written_in_place")) {
    const int error = WriteInPlace(file, parts);
    return error == 0 ? Status() : Failed(path, error);
  }

  const std::string beside = file + kBeside;
  int error = WriteBeside(beside, is_there ? former.st_mode & 07777 : 0, parts);
  if (error == 0 && rename(beside.c_str(), file.c_str()) != 0) error = errno;
  if (error == 0) {
    SyncFolderOf(file);
    return {};
  }
  unlink(beside.c_str());
  return Failed(path, error);
}

Status WriteWholeFile(const std::string& path, const std::string& text) {
  return WriteWholeFile(path, Parts{std::as_bytes(std::span(text))});
}

}  // namespace tidepool
