#include "trainer/comm/nccl/registered_host.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/units.h"

namespace tidepool::trainer {

void RegisteredHost::Unmap::operator()(std::byte* pages) const {
  munmap(pages, bytes);
}

Result<RegisteredHost> RegisteredHost::Create(device::Device* device, uint64_t bytes) {
  bytes = RoundUp(std::max<uint64_t>(bytes, 1), kPageBytes);
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) {
    return Status(ErrorId::kMemoryMapFailed,
                  "no " + FormatBytes(bytes) + " of host memory to register with " + device->name())
        .Why(std::strerror(errno));
  }

  RegisteredHost host;
  host.pages_ = {static_cast<std::byte*>(at), Unmap{bytes}};
  TP_ASSIGN_OR_RETURN(host.registration_, device->Register(at, bytes));
  return host;
}

void RegisteredHost::Abandon() {
  static_cast<void>(registration_.release());
  static_cast<void>(pages_.release());
}

}  // namespace tidepool::trainer
