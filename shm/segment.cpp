#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/units.h"

namespace tidepool::shm {

namespace ipc = boost::interprocess;

namespace {

// Kernel numbers that headers of older C libraries lack.
constexpr unsigned kNoExecSeal = 0x0008U;  // MFD_NOEXEC_SEAL, Linux 6.3
constexpr int kSealFutureWrite = 0x0010;   // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr int kPopulateWrite = 23;         // MADV_POPULATE_WRITE, Linux 5.14
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The interface of a mappable object in Boost.Interprocess: a descriptor and a mode.
class MappableFd {
 public:
  MappableFd(int fd, ipc::mode_t mode) : fd_(fd), mode_(mode) {}
  ipc::mapping_handle_t get_mapping_handle() const {
    return ipc::ipcdetail::mapping_handle_from_file_handle(fd_);
  }
  ipc::mode_t get_mode() const { return mode_; }

 private:
  int fd_;
  ipc::mode_t mode_;
};

Status MapFailed(const std::string& label, uint64_t bytes, const char* step) {
  return Status(ErrorId::kMemoryMapFailed,
                "cannot make shared memory '" + label + "' of " + FormatBytes(bytes))
      .Where(step)
      .Why(std::strerror(errno));
}

UniqueFd OpenMemory(const char* label) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(memfd_create(label, kFlags | kNoExecSeal));
  // Kernels before 6.3 do not know NOEXEC_SEAL.
  if (!fd.valid() && errno == EINVAL) fd = UniqueFd(memfd_create(label, kFlags));
  return fd;
}

bool Touch(std::byte* data, uint64_t bytes) {
  if (madvise(data, bytes, kPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;
  // For kernels before 5.14; a shortage kills the process here, so the budget is checked first.
  std::memset(data, 0, bytes);
  return true;
}

}  // namespace

struct Segment::Mapping {
  ipc::mapped_region region;
};

Segment::Segment(UniqueFd fd, std::unique_ptr<Mapping> mapping, uint64_t bytes)
    : fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      data_(static_cast<std::byte*>(mapping_->region.get_address())),
      bytes_(bytes) {
  madvise(data_, bytes_, MADV_DONTFORK);
  madvise(data_, bytes_, MADV_DONTDUMP);
}

Segment::~Segment() = default;

Result<std::unique_ptr<Segment>> Segment::Create(const char* label, uint64_t bytes,
                                                 PeerAccess peer) {
  bytes = RoundUp(bytes, kPageBytes);
  UniqueFd fd = OpenMemory(label);
  if (!fd.valid()) return MapFailed(label, bytes, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return MapFailed(label, bytes, "ftruncate");

  auto mapping = std::make_unique<Mapping>();
  try {
    mapping->region =
        ipc::mapped_region(MappableFd(fd.get(), ipc::read_write), ipc::read_write, 0, bytes);
  } catch (const ipc::interprocess_exception&) {
    return MapFailed(label, bytes, "mmap");
  }
  if (!Touch(static_cast<std::byte*>(mapping->region.get_address()), bytes))
    return MapFailed(label, bytes, "touching pages");
  // FUTURE_WRITE leaves our own writable mapping intact, and also forbids punching holes.
  const int seals = kSizeSeals | (peer == PeerAccess::kReadOnly ? kSealFutureWrite : 0);
  if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return MapFailed(label, bytes, "sealing");
  return std::unique_ptr<Segment>(new Segment(std::move(fd), std::move(mapping), bytes));
}

Result<std::unique_ptr<Segment>> Segment::Map(UniqueFd fd, uint64_t bytes, PeerAccess peer) {
  bytes = RoundUp(bytes, kPageBytes);
  struct stat about {};
  if (!fd.valid() || fstat(fd.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return Status(ErrorId::kHandshakeBad, "the server sent a descriptor that is not memory");
  }

  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (static_cast<uint64_t>(about.st_size) != bytes || seals < 0 ||
      (seals & kSizeSeals) != kSizeSeals) {
    return Status(ErrorId::kHandshakeBad, "the server sent memory of " +
                                              std::to_string(about.st_size) + " bytes with seals " +
                                              std::to_string(seals) + "; expected " +
                                              std::to_string(bytes) + " bytes, sealed");
  }

  const auto mode = peer == PeerAccess::kReadOnly ? ipc::read_only : ipc::read_write;
  auto mapping = std::make_unique<Mapping>();
  try {
    mapping->region = ipc::mapped_region(MappableFd(fd.get(), mode), mode, 0, bytes);
  } catch (const ipc::interprocess_exception&) {
    return MapFailed("from the server", bytes, "mmap");
  }
  return std::unique_ptr<Segment>(new Segment(std::move(fd), std::move(mapping), bytes));
}

}  // namespace tidepool::shm
