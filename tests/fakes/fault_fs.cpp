#include "tests/fakes/fault_fs.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "base/units.h"

namespace tidepool::nvme {
namespace {

constexpr uint64_t kRootNode = FUSE_ROOT_ID, kFileNode = 2;
constexpr uint32_t kWriteMax = 128 * kKiB;

// The child: one request after the other, each carried out by the simulated disk.
class Answerer {
 public:
  Answerer(int fd, const FaultFs::Options& options, FaultFs::Shared* shared)
      : fd_(fd),
        bytes_(options.file_bytes),
        shared_(shared),
        disk_(options.seed, std::vector<uint64_t>{options.file_bytes}) {
    for (size_t i = 0; i < options.odds.size(); ++i)
      disk_.Arm(static_cast<DiskFault>(i), options.odds[i]);
  }

  // Until it is unmounted.
  void Run() {
    std::vector<std::byte> buffer(2 * kWriteMax);
    for (;;) {
      const ssize_t got = read(fd_, buffer.data(), buffer.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
      if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      fuse_in_header header;
      std::memcpy(&header, buffer.data(), sizeof header);
      Answer(header,
             std::span(buffer).subspan(sizeof header, static_cast<size_t>(got) - sizeof header));
    }
  }

 private:
  template <typename T>
  static T As(std::span<const std::byte> bytes) {
    T value{};
    std::memcpy(&value, bytes.data(), std::min(sizeof value, bytes.size()));
    return value;
  }
  void Send(uint64_t unique, int error, std::span<const std::byte> body) const {
    fuse_out_header header{static_cast<uint32_t>(sizeof(fuse_out_header) + body.size()), error,
                           unique};
    const iovec parts[] = {{&header, sizeof header},
                           {const_cast<std::byte*>(body.data()), body.size()}};
    [[maybe_unused]] const auto sent = writev(fd_, parts, body.empty() ? 1 : 2);
  }
  template <typename T>
  void Reply(uint64_t unique, const T& body) const {
    Send(unique, 0, std::as_bytes(std::span(&body, 1)));
  }

  fuse_attr AttrOf(uint64_t node) const {
    fuse_attr attr{};
    attr.ino = node;
    attr.size = node == kFileNode ? bytes_ : 0;
    attr.mode = node == kFileNode ? S_IFREG | 0600 : S_IFDIR | 0700;
    attr.nlink = 1;
    attr.blksize = kPageBytes;
    return attr;
  }

  void Answer(const fuse_in_header& in, std::span<std::byte> body) {
    switch (in.opcode) {
      case FUSE_INIT: return Begin(in, As<fuse_init_in>(body));
      case FUSE_LOOKUP: {
        const bool known = std::strcmp(reinterpret_cast<const char*>(body.data()), "states") == 0;
        if (!known) return Send(in.unique, -ENOENT, {});
        fuse_entry_out entry{};
        entry.nodeid = kFileNode;
        entry.attr = AttrOf(kFileNode);
        return Reply(in.unique, entry);
      }
      case FUSE_GETATTR:
      case FUSE_SETATTR: return Reply(in.unique, fuse_attr_out{0, 0, 0, AttrOf(in.nodeid)});
      case FUSE_OPEN: return Reply(in.unique, fuse_open_out{1, FOPEN_DIRECT_IO, 0});
      case FUSE_READ: return Read(in.unique, As<fuse_read_in>(body));
      case FUSE_WRITE:
        return Write(in.unique, As<fuse_write_in>(body), body.subspan(sizeof(fuse_write_in)));
      case FUSE_FSYNC: return Send(in.unique, std::min(0, Do({.kind = IoKind::kSync})), {});
      case FUSE_FLUSH:
      case FUSE_RELEASE:
      case FUSE_ACCESS: return Send(in.unique, 0, {});
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT: return;
      default: return Send(in.unique, -ENOSYS, {});
    }
  }

  void Begin(const fuse_in_header& in, const fuse_init_in& wanted) const {
    fuse_init_out out{};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = std::min<uint32_t>(wanted.minor, FUSE_KERNEL_MINOR_VERSION);
    out.flags = wanted.flags & (FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_MAX_PAGES);
    out.max_background = 64;
    out.congestion_threshold = 48;
    out.max_write = kWriteMax;
    out.max_pages = kWriteMax / kPageBytes;
    out.time_gran = 1;
    Reply(in.unique, out);
  }

  // Bytes that were moved, or minus an errno.
  int32_t Do(const IoRequest& request) {
    disk_.Submit(request);
    for (;;) {
      auto done = disk_.Reap();
      if (!done) continue;
      shared_->faults.store(disk_.faults(), std::memory_order_release);
      for (size_t i = 0; i < static_cast<size_t>(DiskFault::kCount); ++i) {
        shared_->by_fault[i].store(disk_.faults(static_cast<DiskFault>(i)),
                                   std::memory_order_release);
      }
      return done->result.Read();
    }
  }
  bool IsInFile(uint64_t offset, uint64_t size) const {
    return size > 0 && offset <= bytes_ && size <= bytes_ - offset;
  }

  void Read(uint64_t unique, const fuse_read_in& in) {
    if (!IsInFile(in.offset, in.size)) return Send(unique, 0, {});
    std::vector<std::byte> data(in.size);
    const int32_t moved =
        Do({.kind = IoKind::kRead, .offset = in.offset, .data = data.data(), .bytes = in.size});
    if (moved < 0) return Send(unique, moved, {});
    Send(unique, 0, std::span(data).first(static_cast<size_t>(moved)));
  }
  void Write(uint64_t unique, const fuse_write_in& in, std::span<std::byte> data) {
    if (!IsInFile(in.offset, in.size) || data.size() < in.size) return Send(unique, -EFBIG, {});
    const int32_t moved =
        Do({.kind = IoKind::kWrite, .offset = in.offset, .data = data.data(), .bytes = in.size});
    if (moved < 0) return Send(unique, moved, {});
    Reply(unique, fuse_write_out{static_cast<uint32_t>(moved), 0});
  }

  const int fd_;
  const uint64_t bytes_;
  FaultFs::Shared* const shared_;
  SimDisk disk_;
};

bool WriteFile(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  const bool ok =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  return ok;
}

// Mounts of its own, which go with the process; as another user, with the rights of a user
// namespace.
bool LeaveMounts() {
  const std::string uid = std::to_string(geteuid()), gid = std::to_string(getegid());
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    WriteFile("/proc/self/setgroups", "deny");
    if (!WriteFile("/proc/self/uid_map", uid + " " + uid + " 1") ||
        !WriteFile("/proc/self/gid_map", gid + " " + gid + " 1"))
      return false;
  }
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

std::nullptr_t No(int fd, const char* what, std::string* why) {
  const int error = errno;
  *why = std::string(what) + ": " + std::strerror(error);
  if (fd >= 0) close(fd);
  errno = error;  // the caller's
  return nullptr;
}

}  // namespace

std::unique_ptr<FaultFs> FaultFs::Mount(const Options& options, std::string* why) {
  const int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd < 0) return No(fd, "/dev/fuse cannot be opened", why);
  if (!LeaveMounts()) return No(fd, "mounts of its own are denied", why);
  const std::string how = "fd=" + std::to_string(fd) +
                          ",rootmode=40000,user_id=" + std::to_string(geteuid()) +
                          ",group_id=" + std::to_string(getegid());
  if (mount("faultfs", options.path.c_str(), "fuse", MS_NOSUID | MS_NODEV, how.c_str()) != 0)
    return No(fd, "the mount is denied", why);
  void* const shared =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TP_CHECK(shared != MAP_FAILED, "room for a page");
  auto* const counts = static_cast<Shared*>(shared);  // zeroed
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Answerer(fd, options, counts).Run();
    _exit(0);
  }
  close(fd);
  return std::unique_ptr<FaultFs>(new FaultFs(options.path, counts, child));
}

void FaultFs::Hang() const {
  kill(child_, SIGSTOP);
}
void FaultFs::Wake() const {
  kill(child_, SIGCONT);
}

FaultFs::~FaultFs() {
  umount2(path_.c_str(), MNT_DETACH);
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  munmap(shared_, sizeof(Shared));
}

}  // namespace tidepool::nvme
