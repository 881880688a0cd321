#include "nvme/slot_directory.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/planted.h"
#include "nvme/page_memory.h"

namespace tidepool::nvme {
namespace {

constexpr mode_t kFileMode = 0600;
constexpr int64_t kLockPauseNs = 10 * kNsPerMs;

// A shortage of descriptors or memory proves nothing about the directory.
Status Failed(ErrorId id, const std::string& what, const std::string& where) {
  const bool lacking = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
  return Status(lacking ? ErrorId::kHostMemoryShort : id, what + ": " + std::strerror(errno))
      .Where(where);
}

UniqueFd OpenAt(int directory, const char* name, uint64_t flags, uint64_t mode, uint64_t resolve) {
  open_how how{};
  how.flags = flags | O_CLOEXEC;
  how.mode = mode;
  how.resolve = resolve;
  return UniqueFd(static_cast<int>(syscall(SYS_openat2, directory, name, &how, sizeof how)));
}

// Opens one component directly in our own directory.
UniqueFd OpenBeneath(int directory, const char* name, uint64_t flags) {
  const uint64_t resolve =
      RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  return OpenAt(directory, name, flags | O_NOFOLLOW, (flags & O_CREAT) != 0 ? kFileMode : 0,
                resolve);
}

Status CheckDirectory(int fd, const std::string& path) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0)
    return Failed(ErrorId::kNvmeDirectoryBad, "the NVMe directory cannot be looked at", path);
  if (facts.st_uid != geteuid()) {
    return Status(ErrorId::kNvmeDirectoryBad,
                  "the NVMe directory belongs to user " + std::to_string(facts.st_uid) +
                      ", memserver runs as " + std::to_string(geteuid()))
        .Where(path);
  }

  if ((facts.st_mode & 077) != 0) {
    return Status(ErrorId::kNvmeDirectoryBad, "the NVMe directory can be entered by others")
        .Where(path)
        .Fix("chmod 0700 " + path);
  }
  return Status();
}

Status CheckFile(int fd, const std::string& path) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0)
    return Failed(ErrorId::kNvmeDirectoryBad, "a file cannot be looked at", path);
  const bool ours = S_ISREG(facts.st_mode) && facts.st_uid == geteuid() && facts.st_nlink == 1 &&
                    (facts.st_mode & 0777) == kFileMode;
  if (ours) return Status();
  return Status(ErrorId::kNvmeDirectoryBad,
                "a file is not a plain file of ours, with mode 0600 and one name")
      .Where(path);
}

Result<UniqueFd> OpenFile(int directory, const std::string& path, const char* name, bool* direct) {
  UniqueFd fd = OpenBeneath(directory, name, O_RDWR | O_CREAT | (*direct ? O_DIRECT : 0));
  if (!fd.valid() && errno == EINVAL && *direct) {
    *direct = false;
    fd = OpenBeneath(directory, name, O_RDWR | O_CREAT);
  }

  const std::string where = path + "/" + name;
  if (!fd.valid())
    return Failed(ErrorId::kNvmeDirectoryBad, "a file of the NVMe directory cannot be opened",
                  where);
  TP_RETURN_IF_ERROR(CheckFile(fd.get(), where));
  return fd;
}

// True if the process is exiting: it frees its memory before it closes its files, and may then wait
// for its parent, but uses the directory no more.
bool IsEnding(pid_t pid) {
  constexpr unsigned kExiting = 4;  // PF_EXITING
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t name_end = text.rfind(')');
  char state = 0;
  unsigned flags = 0;
  const bool read =
      name_end != std::string::npos &&
      std::sscanf(text.c_str() + name_end + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) == 2;
  return read && (state == 'Z' || state == 'X' || (flags & kExiting) != 0);
}

// The writer of the owner file, if that process lives.
pid_t LivingOwner(int directory) {
  const UniqueFd fd = OpenBeneath(directory, kOwnerFileName, O_RDONLY);
  char text[32] = {};
  if (!fd.valid() || read(fd.get(), text, sizeof text - 1) <= 0) return 0;
  const pid_t pid = static_cast<pid_t>(std::strtol(text, nullptr, 10));
  const bool lives = pid > 0 && (kill(pid, 0) == 0 || errno == EPERM) && !IsEnding(pid);
  return lives ? pid : 0;
}

void WriteOwner(int directory) {
  const UniqueFd fd = OpenBeneath(directory, kOwnerFileName, O_WRONLY | O_CREAT | O_TRUNC);
  const std::string text = std::to_string(getpid()) + "\n";
  // Only the text of an error depends on this write.
  if (fd.valid() && write(fd.get(), text.data(), text.size()) < 0) return;
}

uint64_t RandomNonce() {
  uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) nonce = static_cast<uint64_t>(getpid());
  return nonce | 1;
}

}  // namespace

Result<SlotDirectory> SlotDirectory::Open(const SlotDirectoryOptions& options, Clock* clock) {
  SlotDirectory opened;
  opened.path_ = options.path;
  opened.directory_ = OpenAt(AT_FDCWD, options.path.c_str(), O_RDONLY | O_DIRECTORY, 0,
                             RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
  if (!opened.directory_.valid()) {
    const char* what = errno == ELOOP ? "the path of the NVMe directory leads over a symbolic link"
                                      : "the NVMe directory cannot be opened";
    return Failed(ErrorId::kNvmeDirectoryBad, what, options.path);
  }

  TP_RETURN_IF_ERROR(CheckDirectory(opened.directory_.get(), options.path));
  TP_RETURN_IF_ERROR(opened.OpenFiles(options, clock));
  TP_RETURN_IF_ERROR(opened.ReadManifests(options));
  TP_RETURN_IF_ERROR(opened.Preallocate());
  if (opened.fresh_) TP_RETURN_IF_ERROR(opened.WriteFirstManifests());
  return opened;
}

// Takes the locks before it reads any content.
Status SlotDirectory::OpenFiles(const SlotDirectoryOptions& options, Clock* clock) {
  TP_ASSIGN_OR_RETURN(data_, OpenFile(directory_.get(), path_, kDataFileName, &direct_));
  TP_RETURN_IF_ERROR(Fence(data_.get(), options, clock));
  for (uint32_t i = 0; i < 2; ++i) {
    TP_ASSIGN_OR_RETURN(manifests_[i],
                        OpenFile(directory_.get(), path_, kManifestFileNames[i], &direct_));
    TP_RETURN_IF_ERROR(Fence(manifests_[i].get(), options, clock));
  }
  WriteOwner(directory_.get());
  profile_ = ReadProfile(directory_.get());
  return Status();
}

// A dead server's requests keep its lock until the last of them has landed.
Status SlotDirectory::Fence(int fd, const SlotDirectoryOptions& options, Clock* clock) const {
  if (TP_PLANTED("nvme.not_fenced")) return Status();
  const int64_t begin = clock->NowNs();
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK)
      return Failed(ErrorId::kNvmeDirectoryBad, "a file of the NVMe directory cannot be locked",
                    path_);

    const int64_t waited = clock->NowNs() - begin;
    const pid_t owner = LivingOwner(directory_.get());
    if (owner != 0 && waited > options.owner_wait_ns) {
      return Status(ErrorId::kNvmeInUse,
                    "the NVMe directory is used by the memserver with process id " +
                        std::to_string(owner))
          .Where(path_);
    }

    if (waited > options.ghost_wait_ns) {
      return Status(
                 ErrorId::kNvmeInUse,
                 "the writes of a memserver that has ended do not end, or a program locks the file")
          .Where(path_);
    }
    clock->SleepNs(kLockPauseNs);
  }
  return Status();
}

Status SlotDirectory::ReadManifests(const SlotDirectoryOptions& options) {
  TP_ASSIGN_OR_RETURN(const PageMemory memory, PageMemory::Map(kManifestBytes));
  const std::span<std::byte> buffer = memory.bytes();
  bool found = false, empty = true;

  for (const UniqueFd& fd : manifests_) {
    const ssize_t got = pread(fd.get(), buffer.data(), kManifestBytes, 0);
    if (got < 0) return Failed(ErrorId::kNvmeIoFailed, "a manifest cannot be read", path_);
    if (got == 0) continue;
    empty = false;

    auto read = DecodeManifest(buffer.first(static_cast<size_t>(got)));
    if (!read.ok()) {
      damage_ = read.status().what();
    } else if (!found || read->generation > manifest_.generation) {
      manifest_ = std::move(read).value();
      found = true;
    }
  }

  const uint64_t asked = options.bytes / kPageBytes * kPageBytes;
  if (found) {
    manifest_.capacity = manifest_.entries.empty() ? asked : std::max(asked, manifest_.capacity);
    return Status();
  }
  if (!empty) damage_ = "no manifest is whole; what the directory held is given up";
  fresh_ = true;
  was_empty_ = empty;
  manifest_ = {.generation = 0, .store = RandomNonce(), .capacity = asked, .entries = {}};
  return Status();
}

Status SlotDirectory::Preallocate() {
  const auto allocate = [this](int fd, uint64_t bytes) {
    if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return Status();
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG)
      return Failed(ErrorId::kNvmeIoFailed, "space cannot be reserved", path_);

    const int error = errno;
    struct statvfs space {};
    const uint64_t free =
        fstatvfs(fd, &space) == 0 ? static_cast<uint64_t>(space.f_bavail) * space.f_frsize : 0;
    return Status(ErrorId::kNvmeSpaceShort, "the NVMe directory has no room for " +
                                                FormatBytes(bytes) + ": " + std::strerror(error) +
                                                ", " + FormatBytes(free) + " are free")
        .Where(path_);
  };

  TP_RETURN_IF_ERROR(allocate(data_.get(), manifest_.capacity));
  for (const UniqueFd& fd : manifests_) TP_RETURN_IF_ERROR(allocate(fd.get(), kManifestBytes));
  for (const int fd : {data_.get(), manifests_[0].get(), manifests_[1].get(), directory_.get()}) {
    if (fsync(fd) != 0)
      return Failed(ErrorId::kNvmeIoFailed, "the NVMe directory cannot be flushed", path_);
  }
  return Status();
}

Status SlotDirectory::WriteFirstManifests() {
  TP_ASSIGN_OR_RETURN(const PageMemory memory, PageMemory::Map(kManifestBytes));
  const std::span<std::byte> buffer = memory.bytes();
  EncodeManifest(manifest_, buffer);

  for (const UniqueFd& fd : manifests_) {
    if (pwrite(fd.get(), buffer.data(), kManifestBytes, 0) !=
            static_cast<ssize_t>(kManifestBytes) ||
        fdatasync(fd.get()) != 0) {
      return Failed(ErrorId::kNvmeIoFailed, "a manifest cannot be written", path_);
    }
  }
  return Status();
}

}  // namespace tidepool::nvme
