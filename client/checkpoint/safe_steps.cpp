#include "client/checkpoint/safe_steps.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/system/futex.h"
#include "base/unique_fd.h"
#include "shm/state_stream.h"

namespace tidepool::client {

Result<SafeSteps> SafeSteps::Of(int memory) {
  UniqueFd own(fcntl(memory, F_DUPFD_CLOEXEC, 0));
  if (!own.valid())
    return Status(ErrorId::kMemoryMapFailed,
                  std::string("cannot keep the memory of the log: ") + std::strerror(errno));
  TP_ASSIGN_OR_RETURN(
      std::unique_ptr<shm::Segment> mapped,
      shm::Segment::Map(std::move(own), shm::kStreamBytes, shm::PeerAccess::kReadWrite));
  return SafeSteps(std::move(mapped));
}

Version SafeSteps::version() const {
  return shm::HeadOf(memory_->data())->safe.load(std::memory_order_acquire);
}

void SafeSteps::AwaitChange(Version seen, int64_t wait_ns) const {
  shm::StreamHead* const head = shm::HeadOf(memory_->data());
  const uint32_t changes = head->safe_changes.load(std::memory_order_acquire);
  if (version() == seen) WaitOnWord(&head->safe_changes, changes, wait_ns);
}

}  // namespace tidepool::client
