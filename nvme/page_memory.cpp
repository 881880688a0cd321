#include "nvme/page_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace tidepool::nvme {

Result<PageMemory> PageMemory::Map(uint64_t bytes, bool touch) {
  bytes = RoundUp(bytes, kPageBytes);
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (touch ? MAP_POPULATE : 0), -1, 0);
  if (at == MAP_FAILED) {
    return Status(ErrorId::kMemoryMapFailed, "the system gives no " + FormatBytes(bytes) + " for transfers: " + std::strerror(errno));
  }
  // Transfers go on while a child is made, and what passes here is not for core dumps.
  madvise(at, bytes, MADV_DONTFORK);
  madvise(at, bytes, MADV_DONTDUMP);
  return PageMemory(static_cast<std::byte*>(at), bytes);
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace tidepool::nvme
