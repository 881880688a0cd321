#include "memserver/checkpoint/weights_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/point.h"
#include "base/formats/safetensors.h"
#include "base/formats/split_float.h"
#include "base/units.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kPieceBytes = 4 * kMiB;
constexpr mode_t kFileMode = 0644;

// Path of a descriptor, for messages.
std::string PathOf(int fd) {
  std::array<char, 4096> path{};
  // The table may be this thread's own.
  const std::string link = "/proc/thread-self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path.data(), path.size());
  return length > 0 ? std::string(path.data(), static_cast<size_t>(length)) : "the directory given";
}

std::string TemporaryName(const std::string& name) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    random = static_cast<uint64_t>(getpid());
  std::array<char, 32> suffix{};
  std::snprintf(suffix.data(), suffix.size(), ".tmp-%016llx",
                static_cast<unsigned long long>(random));
  return name + suffix.data();
}

// Creates a new file directly in `directory`; a link or mount inside the name cannot lead
// elsewhere.
UniqueFd CreateBeneath(int directory, const std::string& name) {
  open_how how{};
  how.flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  how.mode = kFileMode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  UniqueFd fd(static_cast<int>(syscall(SYS_openat2, directory, name.c_str(), &how, sizeof how)));
  // Kernels before 5.6 and some sandboxes lack openat2. The name is one component, so O_EXCL and
  // O_NOFOLLOW are equivalent.
  if (!fd.valid() && (errno == ENOSYS || errno == EPERM)) {
    fd = UniqueFd(openat(directory, name.c_str(), static_cast<int>(how.flags), kFileMode));
  }
  return fd;
}

// One save in progress; its destructor removes the temporary file unless it got its final name.
class Save {
 public:
  Save(const SaveRequest& request, const SaveLimits& limits)
      : request_(request), limits_(limits), temporary_(TemporaryName(request.name)) {}
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;
  ~Save() {
    if (created_) unlinkat(directory_.get(), temporary_.c_str(), 0);
  }

  Status Run() {
    TP_ASSIGN_OR_RETURN(const std::string header, Header());
    TP_RETURN_IF_ERROR(Open(header.size() + data_bytes_));
    TP_RETURN_IF_ERROR(Write(header.data(), header.size()));
    for (const SavedTensor& tensor : request_.tensors) TP_RETURN_IF_ERROR(WriteTensor(tensor));
    return Publish();
  }

 private:
  Status Failed(const std::string& step) const {
    const int error = errno;
    struct statvfs space {};
    std::string free;
    if (fstatvfs(directory_.get(), &space) == 0) {
      free = ", " + FormatBytes(static_cast<uint64_t>(space.f_bavail) * space.f_frsize) + " free";
    }
    // The cause is in the first sentence, the only part that a remote client is shown.
    return Status(ErrorId::kSaveFailed, step + " '" + request_.name +
                                            "' failed: " + std::strerror(error) + " (" +
                                            FormatBytes(data_bytes_) + " wanted" + free + ")")
        .Where(PathOf(request_.directory.get()));
  }

  Status CheckLimits() const {
    if (limits_.stop != nullptr && limits_.stop->load(std::memory_order_relaxed)) {
      return Status(ErrorId::kSaveFailed,
                    "saving '" + request_.name + "' was given up: memserver is stopping");
    }

    if (limits_.clock->NowNs() > limits_.deadline_ns) {
      return Status(ErrorId::kSaveFailed,
                    "saving '" + request_.name +
                        "' was given up: the disk took longer than the time allowed, " +
                        FormatBytes(written_) + " of " + FormatBytes(data_bytes_) + " were written")
          .Where(PathOf(request_.directory.get()));
    }
    return {};
  }

  Result<std::string> Header() {
    SafetensorsHeader header;
    header.metadata = request_.metadata;
    for (const SavedTensor& tensor : request_.tensors) {
      header.tensors.push_back({.name = tensor.name, .dtype = "F32", .shape = tensor.dims});
    }

    auto text = EncodeSafetensorsHeader(&header);
    if (!text.ok())
      return Status(ErrorId::kSaveFailed,
                    "the tensors do not fit into one file: " + text.status().what());

    for (size_t i = 0; i < header.tensors.size(); ++i) {
      const uint64_t bytes = header.tensors[i].end - header.tensors[i].begin;
      if (bytes != request_.tensors[i].count * sizeof(float)) {
        return Status(ErrorId::kSaveFailed,
                      "tensor '" + request_.tensors[i].name + "' has another size than its shape");
      }
      data_bytes_ += bytes;
    }
    return text;
  }

  Status Open(uint64_t file_bytes) {
    // An O_PATH descriptor cannot be flushed: open the directory itself.
    directory_ =
        UniqueFd(openat(request_.directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory_.valid()) return Failed("opening the directory of");
    file_ = CreateBeneath(directory_.get(), temporary_);
    if (!file_.valid()) return Failed("creating");
    created_ = true;
    TP_POINT("checkpoint.created");
    // Allocates the space now, so that a full disk is noticed before gigabytes are written.
    if (fallocate(file_.get(), 0, 0, static_cast<off_t>(file_bytes)) != 0 && errno != EOPNOTSUPP &&
        errno != EINTR && errno != ENOSYS) {
      return Failed("taking space for");
    }
    return {};
  }

  Status WriteTensor(const SavedTensor& tensor) {
    if (tensor.data != nullptr) return Write(tensor.data, tensor.count * sizeof(float));
    joined_.resize(kPieceBytes / sizeof(float));

    for (uint64_t first = 0; first < tensor.count; first += joined_.size()) {
      const uint64_t count = std::min<uint64_t>(joined_.size(), tensor.count - first);
      const Status read = ReadValues(tensor, first, std::span(joined_).first(count));
      if (!read.ok())
        return Status(ErrorId::kSaveFailed,
                      "saving '" + request_.name + "' failed: " + read.what());
      TP_RETURN_IF_ERROR(Write(joined_.data(), count * sizeof(float)));
    }
    return {};
  }

  Status Write(const void* data, uint64_t bytes) {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0) {
      TP_RETURN_IF_ERROR(CheckLimits());
      const ssize_t done = write(file_.get(), at, std::min(bytes, kPieceBytes));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return Failed("writing");
      // Starts the write-back now; else everything would wait for the last flush.
      sync_file_range(file_.get(), static_cast<off64_t>(written_), done, SYNC_FILE_RANGE_WRITE);
      at += done;
      bytes -= static_cast<uint64_t>(done);
      written_ += static_cast<uint64_t>(done);
    }
    return {};
  }

  Status Publish() {
    TP_POINT("checkpoint.written");
    if (fsync(file_.get()) != 0) return Failed("flushing");
    TP_RETURN_IF_ERROR(CheckLimits());
    TP_POINT("checkpoint.flushed");

    if (renameat(directory_.get(), temporary_.c_str(), directory_.get(), request_.name.c_str()) !=
        0)
      return Failed("naming");
    created_ = false;
    TP_POINT("checkpoint.renamed");
    if (fsync(directory_.get()) != 0) return Failed("flushing the directory of");
    return {};
  }

  const SaveRequest& request_;
  const SaveLimits& limits_;
  const std::string temporary_;
  UniqueFd directory_, file_;
  bool created_ = false;
  std::vector<float> joined_;  // a piece whose form in the pool differs from the saved one
  uint64_t data_bytes_ = 0, written_ = 0;
};

}  // namespace

std::string WhyNotFileName(const std::string& name) {
  if (name.empty()) return "it is empty";
  if (name == "." || name == "..") return "it names a directory";
  if (name.size() > kSaveNameMax)
    return "it is longer than " + std::to_string(kSaveNameMax) + " bytes";
  const auto bad = [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  };
  if (std::any_of(name.begin(), name.end(), bad)) return "it holds a slash or a control character";
  return "";
}

Status ReadValues(const SavedTensor& tensor, uint64_t first, std::span<float> values) {
  if (tensor.read) return tensor.read(first, values);
  if (tensor.data != nullptr) {
    std::copy_n(tensor.data + first, values.size(), values.data());
    return {};
  }
  for (uint64_t i = 0; i < values.size(); ++i) {
    values[i] = Join(tensor.high[first + i], tensor.rest[first + i]);
  }
  return {};
}

Status WriteWeightsFile(const SaveRequest& request, const SaveLimits& limits) {
  const std::string why_not = WhyNotFileName(request.name);
  if (!why_not.empty()) {
    return Status(ErrorId::kSaveFailed, "the file name of a save is refused: " + why_not)
        .Fix("give one plain file name");
  }
  return Save(request, limits).Run();
}

}  // namespace tidepool::memserver
