#include "memserver/update/done_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hot.h"
#include "base/system/last_words.h"
#include "base/planted.h"

namespace tidepool::memserver {

DoneQueue::DoneQueue(uint32_t most) : ring_(most), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_.valid()) DieOutOf("descriptor for an event");
}

void DoneQueue::Push(const WorkDone& done) {
  TP_CHECK(ring_.TryPush(done), "no more work is in hand than notices have room");
  if (until_event_.fetch_sub(1, std::memory_order_seq_cst) != 1 ||
      TP_PLANTED("update.done_not_told"))
    return;
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(event_.get(), &one, sizeof one);
}

TP_HOT bool DoneQueue::TakeAll(std::vector<WorkDone>* out) {
  out->clear();
  WorkDone done;
  while (ring_.Pop(&done)) out->push_back(done);
  return !out->empty();
}

// An exchange, not a store: it reads what the last Push wrote, so that everything pushed before
// that is visible from here on.
void DoneQueue::Arm(uint32_t pushes) {
  uint64_t count = 0;
  [[maybe_unused]] const auto n = read(event_.get(), &count, sizeof count);
  until_event_.exchange(pushes, std::memory_order_seq_cst);
}

}  // namespace tidepool::memserver
