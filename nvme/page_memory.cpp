#include "nvme/page_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace tidepool::nvme {
namespace {

// Maps `bytes` from a boundary of 2 MiB on; null if the system has none.
std::byte* MapAtHugePage(uint64_t bytes) {
  void* const at = mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(at);
  const uint64_t before = RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) -
                          reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePageBytes - before);
  return begin + before;
}

// False, with errno, if the system has too few pages.
bool TouchAll(std::byte* data, uint64_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  // Linux before 5.14 lacks this call.
  for (uint64_t at = 0; at < bytes; at += kPageBytes)
    *reinterpret_cast<volatile char*>(data + at) = 0;
  return true;
}

}  // namespace

Result<PageMemory> PageMemory::Map(uint64_t bytes, bool touch) {
  const bool huge = touch && bytes >= kHugePageBytes;
  bytes = RoundUp(bytes, huge ? kHugePageBytes : kPageBytes);
  const auto denied = [bytes] {
    return Status(ErrorId::kMemoryMapFailed, "the system gives no " + FormatBytes(bytes) +
                                                 " for transfers: " + std::strerror(errno));
  };

  std::byte* at = nullptr;
  if (huge) {
    at = MapAtHugePage(bytes);
  } else if (void* const small =
                 mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
             small != MAP_FAILED) {
    at = static_cast<std::byte*>(small);
  }
  if (at == nullptr) return denied();
  PageMemory memory(at, bytes);
  // Transfers go on during a fork, and the contents do not belong into core dumps.
  madvise(at, bytes, MADV_DONTFORK);
  madvise(at, bytes, MADV_DONTDUMP);
  if (huge) madvise(at, bytes, MADV_HUGEPAGE);  // optional
  if (touch && !TouchAll(at, bytes)) return denied();
  return memory;
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace tidepool::nvme
