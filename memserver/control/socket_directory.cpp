#include "memserver/control/socket_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/planted.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {

namespace {

// A killed owner keeps its lock until its memory is unmapped; a keeper may have started the next
// server by then.
constexpr int64_t kDyingOwnerNs = kNsPerSecond / 2;

Status Failed(const std::string& what, const std::string& path) {
  return Status(ErrorId::kSocketFailed, what).Where(path).Why(std::strerror(errno));
}

Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return Failed("cannot make the socket directory", path);

  struct stat about {};
  if (lstat(path.c_str(), &about) != 0) return Failed("cannot look at the socket directory", path);
  if (!S_ISDIR(about.st_mode))
    return Status(ErrorId::kSocketFailed, "the socket directory is not a directory").Where(path);
  if (about.st_uid != geteuid()) {
    return Status(ErrorId::kSocketFailed,
                  "the socket directory belongs to user " + std::to_string(about.st_uid))
        .Where(path);
  }

  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Status(ErrorId::kSocketFailed, "other users may write into the socket directory")
        .Where(path)
        .Fix("chmod 700 " + path);
  }
  return Status();
}

Status InUse(int lock, const std::string& path) {
  std::array<char, 64> text{};
  const ssize_t length = pread(lock, text.data(), text.size() - 1, 0);
  std::string owner =
      length > 0 ? std::string(text.data(), static_cast<size_t>(length)) : "unknown";
  owner = owner.substr(0, owner.find_first_of(" \n"));
  return Status(ErrorId::kSocketInUse,
                "a memserver with pid " + owner + " already serves this socket directory")
      .Where(path);
}

// True when the lock is on the file that the path names now: an owner that just ended has removed
// its file, which may be the one that was opened here.
bool IsSameFile(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

Result<std::unique_ptr<SocketDirectory>> SocketDirectory::Claim(const std::string& path,
                                                                Clock* clock) {
  TP_RETURN_IF_ERROR(shm::CheckSocketDir(path));
  TP_RETURN_IF_ERROR(MakeDirectory(path));
  const std::string lock_path = shm::LockFilePath(path);

  UniqueFd lock;
  const int64_t end = clock->NowNs() + kDyingOwnerNs;
  do {
    lock = UniqueFd(
        open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!lock.valid()) return Failed("cannot open the lock file", lock_path);

    while (!TP_PLANTED("jobs.directory_not_locked") && flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Failed("cannot lock", lock_path);
      if (clock->NowNs() > end) return InUse(lock.get(), path);
      clock->SleepNs(kDyingOwnerNs / 50);
    }
  } while (!IsSameFile(lock.get(), lock_path));

  const std::string owner = std::to_string(getpid()) + " " + std::to_string(WallSeconds()) + "\n";
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size())) {
    return Failed("cannot write the lock file", lock_path);
  }
  // A former server in service mode may have let others in.
  if (struct stat about{}; stat(path.c_str(), &about) == 0 && (about.st_mode & 0777U) == 0750U &&
                           chmod(path.c_str(), S_IRWXU) != 0) {
    return Failed("cannot protect the socket directory", path);
  }

  std::unique_ptr<SocketDirectory> directory(new SocketDirectory(path, std::move(lock)));
  directory->RemoveSockets();  // left by a dead server, whose lock we hold now
  return directory;
}

Status SocketDirectory::Open(const Access& access) const {
  if (!access.is_service) return Status();
  // The directory comes last: nobody enters before the sockets have their modes.
  for (const std::string& path : {shm::DataSocketPath(path_), shm::AdminSocketPath(path_), path_}) {
    const mode_t mode = path == path_ ? access.directory_mode() : access.socket_mode();
    if (chown(path.c_str(), static_cast<uid_t>(-1), access.group) != 0 ||
        chmod(path.c_str(), mode) != 0) {
      return Failed("cannot give the group " + std::to_string(access.group) + " access", path);
    }
  }
  return Status();
}

void SocketDirectory::RemoveSockets() const {
  unlink(shm::DataSocketPath(path_).c_str());
  unlink(shm::AdminSocketPath(path_).c_str());
}

SocketDirectory::~SocketDirectory() {
  RemoveSockets();
  unlink(shm::LockFilePath(path_).c_str());
}

}  // namespace tidepool::memserver
