#include "device/host/host_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/planted.h"
#include "base/system/system_memory.h"
#include "base/units.h"

namespace tidepool::device {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// F_SEAL_EXEC, Linux 6.3: set by MFD_NOEXEC_SEAL or by the system's default.
constexpr int kSealExec = 0x0020;

Status MapError(const std::string& step, uint64_t bytes) {
  const std::string why = std::strerror(errno);
  return Status(ErrorId::kMemoryMapFailed,
                step + " of " + FormatBytes(bytes) + " of shared memory failed")
      .Why(why);
}

// Makes every page present now: later a failure could only be a SIGBUS.
Status Populate(std::byte* data, uint64_t bytes) {
  (void)madvise(data, bytes, MADV_HUGEPAGE);  // optional; small pages work as well
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return {};
  if (errno != EINVAL) return MapError("touching", bytes);
  // Before Linux 5.14 there is no MADV_POPULATE_WRITE: write a zero to each page of the zeroed
  // file.
  for (uint64_t at = 0; at < bytes; at += kPageBytes)
    *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  return {};
}

Status NotOurs(const std::string& what) {
  return Status(ErrorId::kHandshakeBad, "the descriptor is not memory that Tidepool made: " + what);
}

// Only the kernel serves the faults of a tmpfs file, so nobody can stall or kill a reader of it; a
// file of any other kind may do both.
Status CheckMadeByCreate(int fd, uint64_t bytes) {
  struct stat file {};
  struct statfs system {};
  if (fd < 0 || fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0)
    return NotOurs("it is not open");
  if (!S_ISREG(file.st_mode) || static_cast<uint64_t>(system.f_type) != TMPFS_MAGIC)
    return NotOurs("it is not a memfd");

  const int seals = fcntl(fd, F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & kSeals) == kSeals;
  if (!sealed && !TP_PLANTED("device.seals_unchecked"))
    return NotOurs("it is not sealed against shrinking, growing and further seals");
  if ((seals & ~kSeals & ~kSealExec) != 0) return NotOurs("it is sealed against writing");

  const auto size = static_cast<uint64_t>(file.st_size);
  if (size != RoundUp(bytes, kPageBytes)) {
    return NotOurs("it holds " + std::to_string(size) + " bytes, " +
                   std::to_string(RoundUp(bytes, kPageBytes)) + " are needed");
  }

  const uint64_t present = static_cast<uint64_t>(file.st_blocks) * 512;
  if (present < size)
    return NotOurs("only " + std::to_string(present) + " of its " + std::to_string(size) +
                   " bytes are present");
  return {};
}

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::MapShared(int fd, uint64_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return MapError("mapping", bytes);
  // A process forked from this one would keep the pages of ended sessions.
  madvise(at, bytes, MADV_DONTFORK);
  // make_unique cannot call the private constructor.
  return std::unique_ptr<HostMemory>(new HostMemory(static_cast<std::byte*>(at), bytes));
}

Result<std::unique_ptr<Memory>> HostMemory::Create(uint64_t bytes, UniqueFd* exported) {
  if (bytes == 0)
    return Status(ErrorId::kMemoryMapFailed, "shared memory of 0 bytes was asked for");
  const MemoryBudget budget = ReadMemoryBudget();
  if (bytes > budget.bytes_available) {
    return Status(ErrorId::kHostMemoryShort,
                  FormatBytes(bytes) + " of shared memory were asked for, " +
                      FormatBytes(budget.bytes_available) + " are available")
        .Why("limited by " + budget.limited_by);
  }

  UniqueFd fd(memfd_create("tidepool-device", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return MapError("creation", bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(RoundUp(bytes, kPageBytes))) != 0)
    return MapError("sizing", bytes);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return MapError("sealing", bytes);

  TP_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory, MapShared(fd.get(), bytes));
  TP_RETURN_IF_ERROR(Populate(memory->data_, bytes));
  if (exported != nullptr) *exported = std::move(fd);
  return std::unique_ptr<Memory>(std::move(memory));
}

Result<std::unique_ptr<Memory>> HostMemory::Map(const UniqueFd& exported, uint64_t bytes) {
  if (bytes == 0) return Status(ErrorId::kMemoryMapFailed, "a mapping of 0 bytes was asked for");
  TP_RETURN_IF_ERROR(CheckMadeByCreate(exported.get(), bytes));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory, MapShared(exported.get(), bytes));
  // The pages are present: this fills the page tables, so that no later access faults.
  TP_RETURN_IF_ERROR(Populate(memory->data_, bytes));
  return std::unique_ptr<Memory>(std::move(memory));
}

HostMemory::~HostMemory() {
  munmap(data_, bytes_);
}

}  // namespace tidepool::device
