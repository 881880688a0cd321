#include "nvme/thread_queue.h"
#include "nvme/uring_queue.h"

namespace tidepool::nvme {

OpenedIoQueue OpenIoQueue(const IoQueueOptions& options) {
  OpenedIoQueue opened;
  opened.fallback = "io_uring is switched off";
  if (options.allow_uring) {
    auto ring = UringQueue::Open(options);
    if (ring.ok()) {
      opened.fallback = (*ring)->lacks();
      opened.queue = std::move(ring).value();
      return opened;
    }
    opened.fallback = ring.status().what();
  }

  opened.queue = std::make_unique<ThreadQueue>(options);
  return opened;
}

}  // namespace tidepool::nvme
