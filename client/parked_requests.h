// ParkedRequests: requests that a server which ended has not answered, on their way to the next
// server, where the rank brought its rCache.
//
// One thread. They have no flags at the next server: each goes out in its order, when this rank's
// streams have said that its memory may be copied to (shm/flag_pages.h).
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "client/request_log.h"
#include "shm/flag_pages.h"
#include "shm/messages.h"

namespace tidepool::client {

// True for requests whose copies are ordered by flags.
bool IsCopy(const shm::Request& request);

class ParkedRequests {
 public:
  // Takes the place of all that were parked: the requests as RequestLog::Renumber gave them.
  void Park(std::vector<shm::Request> requests) {
    requests_ = std::move(requests);
    sent_ = 0;
  }
  bool any() const { return sent_ < requests_.size(); }
  // The next one in order, where it may be sent now; null: none, or its streams are not there yet.
  const shm::Request* Ready(const shm::FlagPages& flags, const RequestLog& log) const;
  // What Ready gave has been sent.
  void Sent() { ++sent_; }

 private:
  std::vector<shm::Request> requests_;
  size_t sent_ = 0;  // the first ones
};

}  // namespace tidepool::client
