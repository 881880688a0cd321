#include "client/parked_requests.h"

namespace tidepool::client {

bool IsCopy(const shm::Request& request) {
  return request.op == static_cast<uint32_t>(shm::Op::kFetch) ||
         request.op == static_cast<uint32_t>(shm::Op::kSubmitGradient);
}

const shm::Request* ParkedRequests::Ready(const shm::FlagPages& flags,
                                          const RequestLog& log) const {
  if (!any()) return nullptr;
  const shm::Request& next = requests_[sent_];
  const bool waits = IsCopy(next) && !flags.IsReady(log.TicketOf(next.counter));
  return waits ? nullptr : &next;
}

}  // namespace tidepool::client
