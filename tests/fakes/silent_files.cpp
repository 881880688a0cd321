#include "tests/fakes/silent_files.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace tidepool::testing {

namespace {

constexpr uint64_t kDirectory = FUSE_ROOT_ID, kFile = 2;
constexpr std::string_view kFileName = "file";

fuse_attr AttributesOf(uint64_t node, uint32_t owner) {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.mode = node == kFile ? S_IFREG | 0666 : S_IFDIR | 0777;
  attributes.nlink = 1;
  attributes.uid = owner;
  attributes.blksize = 4096;
  return attributes;
}

}  // namespace

SilentFiles::SilentFiles(uint32_t owner)
    : owner_(owner),
      connection_(open("/dev/fuse", O_RDWR | O_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  std::string pattern = "/tmp/tp-silent-XXXXXX";
  if (!connection_.valid()) {
    missing_ = std::string("/dev/fuse: ") + std::strerror(errno);
  } else if (mkdtemp(pattern.data()) != nullptr) {
    directory_ = pattern;
    const std::string options = "fd=" + std::to_string(connection_.get()) +
                                ",rootmode=40000,user_id=" + std::to_string(geteuid()) +
                                ",group_id=0,allow_other";
    if (mount("tidepool-test", directory_.c_str(), "fuse.tidepool", MS_NOSUID | MS_NODEV,
              options.c_str()) != 0) {
      missing_ = std::string("mounting a FUSE file system: ") + std::strerror(errno);
    }
  } else {
    missing_ = "a directory in /tmp";
  }
  if (missing_.empty()) server_ = std::thread([this] { Serve(); });
}

SilentFiles::~SilentFiles() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(stop_.get(), &one, sizeof one);
  if (server_.joinable()) server_.join();
  connection_.Reset();  // the last one: all that waits is given an error
  if (missing_.empty()) umount2(directory_.c_str(), MNT_DETACH);
  if (!directory_.empty()) rmdir(directory_.c_str());
}

void SilentFiles::Serve() {
  std::vector<std::byte> request(FUSE_MIN_READ_BUFFER + 64 * 1024);
  for (;;) {
    std::array<pollfd, 2> entries{{{connection_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[1].revents != 0) return;
    const ssize_t bytes = read(connection_.get(), request.data(), request.size());
    if (bytes < 0 && errno == ENODEV) return;
    if (bytes >= static_cast<ssize_t>(sizeof(fuse_in_header)) && !Answer(request.data()))
      unanswered_.fetch_add(1);
  }
}

void SilentFiles::Reply(uint64_t unique, int error, const void* content, size_t bytes) {
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof header + (error == 0 ? bytes : 0));
  header.error = -error;
  header.unique = unique;
  const std::array<iovec, 2> parts{{{&header, sizeof header}, {const_cast<void*>(content), bytes}}};
  [[maybe_unused]] const auto n =
      writev(connection_.get(), parts.data(), error == 0 && bytes > 0 ? 2 : 1);
}

bool SilentFiles::TakeWrite(uint64_t unique, std::span<const std::byte> content) {
  if (on_write_) on_write_(content);
  const auto bytes = static_cast<uint32_t>(content.size());
  if (writes_answered_.fetch_sub(1) <= 0) {
    held_bytes_.store(bytes);
    held_write_.store(unique);
    return false;
  }
  const fuse_write_out written{bytes, 0};
  Reply(unique, 0, &written, sizeof written);
  return true;
}

void SilentFiles::AnswerWrites() {
  writes_answered_.store(INT64_MAX);
  const fuse_write_out written{held_bytes_.load(), 0};
  Reply(held_write_.load(), 0, &written, sizeof written);
}

bool SilentFiles::Answer(const std::byte* request) {
  fuse_in_header header{};
  std::memcpy(&header, request, sizeof header);
  const auto reply = [&](const auto& content) {
    Reply(header.unique, 0, &content, sizeof content);
  };
  switch (header.opcode) {
    case FUSE_INIT: {
      fuse_init_out init{};
      init.major = FUSE_KERNEL_VERSION;
      init.minor = FUSE_KERNEL_MINOR_VERSION;
      init.max_write = 4096;
      reply(init);
      return true;
    }
    case FUSE_LOOKUP: {
      fuse_entry_out entry{};
      entry.nodeid = kFile;
      entry.attr = AttributesOf(kFile, owner_);
      const bool found = reinterpret_cast<const char*>(request + sizeof header) == kFileName;
      Reply(header.unique, found ? 0 : ENOENT, &entry, sizeof entry);
      return true;
    }
    case FUSE_GETATTR: {
      if (hides_attributes_.load()) return false;
      fuse_attr_out out{};  // valid for no time at all
      out.attr = AttributesOf(header.nodeid, owner_);
      reply(out);
      return true;
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: reply(fuse_open_out{}); return true;
    case FUSE_CREATE: {
      if (writes_answered_.load() < 0) return false;
      struct {
        fuse_entry_out entry{};
        fuse_open_out open{};
      } created;
      created.entry.nodeid = kFile;
      created.entry.attr = AttributesOf(kFile, owner_);
      reply(created);
      return true;
    }
    case FUSE_WRITE: {
      fuse_write_in write{};
      std::memcpy(&write, request + sizeof header, sizeof write);
      return TakeWrite(header.unique, {request + sizeof header + sizeof write, write.size});
    }
    case FUSE_FLUSH:
    case FUSE_TMPFILE: return false;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: return true;  // no answer belongs to these
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR: Reply(header.unique, 0, nullptr, 0); return true;
    default: Reply(header.unique, ENOSYS, nullptr, 0); return true;
  }
}

}  // namespace tidepool::testing
