#include "base/system/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/planted.h"

namespace tidepool {
namespace {

// Always the same name, so that killed processes leave at most one file.
constexpr const char* kBeside = ".new";

// Makes the new name durable too, as far as the file system can.
void SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) static_cast<void>(fsync(fd.get()));
}

// The target of a link; the path itself if nothing exists there yet.
std::string Followed(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) != nullptr ? real : path;
}

}  // namespace

Result<WholeFile> WholeFile::Begin(const std::string& path) {
  WholeFile begun(path);
  begun.file_ = Followed(path);
  struct stat former {};
  const bool is_there = stat(begun.file_.c_str(), &former) == 0;
  const bool in_place =
      (is_there && !S_ISREG(former.st_mode)) || TP_PLANTED("base.file_written_in_place");
  if (!in_place) begun.beside_ = begun.file_ + kBeside;

  const std::string& target = in_place ? begun.file_ : begun.beside_;
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (in_place ? 0 : O_NOFOLLOW);
  begun.fd_ = UniqueFd(open(target.c_str(), flags, 0666));
  if (!begun.fd_.valid()) {
    const int error = errno;
    begun.beside_.clear();
    return begun.Failed(error);
  }

  const bool keeps_mode = is_there && !in_place;
  if (keeps_mode && fchmod(begun.fd_.get(), former.st_mode & 07777) != 0)
    return begun.Failed(errno);
  return begun;
}

WholeFile::WholeFile(WholeFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      beside_(std::exchange(other.beside_, {})),
      fd_(std::move(other.fd_)) {}

WholeFile::~WholeFile() {
  if (!beside_.empty()) unlink(beside_.c_str());
}

Status WholeFile::Failed(int error) const {
  return Status(ErrorId::kFileWriteFailed, "cannot write " + path_)
      .Where(path_)
      .Why(std::strerror(error));
}

Status WholeFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed(n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status WholeFile::Commit() {
  if (beside_.empty()) return {};
  if (fsync(fd_.get()) != 0 || rename(beside_.c_str(), file_.c_str()) != 0) return Failed(errno);
  beside_.clear();
  SyncFolderOf(file_);
  return {};
}

Status WriteWholeFile(const std::string& path,
                      const std::vector<std::span<const std::byte>>& parts) {
  TP_ASSIGN_OR_RETURN(WholeFile file, WholeFile::Begin(path));
  for (const std::span<const std::byte> part : parts) TP_RETURN_IF_ERROR(file.Write(part));
  return file.Commit();
}

Status WriteWholeFile(const std::string& path, const std::string& text) {
  return WriteWholeFile(path, {std::as_bytes(std::span(text))});
}

}  // namespace tidepool
