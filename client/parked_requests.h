// ParkedRequests: requests that an ended server has not answered, waiting for the next server, if
// the rank brought its rCache.
//
// One thread. These requests have no flags at the next server: each is sent in order, once this
// rank's streams have released its memory for the copy (shm/flag_pages.h).
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
  // Replaces all parked requests by those that RequestLog::Renumber returned.
  void Park(std::vector<shm::Request> requests) {
    requests_ = std::move(requests);
    sent_ = 0;
  }
  bool any() const { return sent_ < requests_.size(); }
  // The next one in order, if it may be sent now; null: none, or its streams are not ready.
  const shm::Request* Ready(const shm::FlagPages& flags, const RequestLog& log) const;
  // The request of Ready has been sent.
  void Sent() { ++sent_; }

 private:
  std::vector<shm::Request> requests_;
  size_t sent_ = 0;  // number of leading requests already sent
};

}  // namespace tidepool::client
