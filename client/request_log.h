// RequestLog: the requests whose outcomes have not been taken, by ticket, and the counters that
// name them at the server.
//
// One thread. Invariants:
//  1. a ticket is never reused; tickets count from 1 in the order of the requests;
//  2. counters belong to one pair of rings and count from 1. Until the first Renumber a ticket is
//     its request's counter; Renumber gives the unanswered requests the counters 1 to n in ticket
//     order, and later requests continue from n + 1.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "client/chunk_service.h"
#include "shm/messages.h"

namespace tidepool::client {

class RequestLog {
 public:
  struct Entry {
    shm::Request request;                    // as last sent
    std::optional<Result<Outcome>> outcome;  // until Wait takes it
  };

  RequestLog();

  // Sets the counter of `request` and keeps a copy.
  Ticket Add(shm::Request* request);
  // Removes the newest request, which was never sent.
  void TakeBack(Ticket ticket);
  // Removes a request whose outcome has been taken.
  void Remove(Ticket ticket) { entries_.erase(ticket); }

  // The entry of a ticket; null if none. Entries do not move until they are removed.
  Entry* Find(Ticket ticket);
  // By the counter in a completion: null also if it was already answered, and for numbers that were
  // never assigned.
  Entry* FindUnanswered(uint64_t counter);
  size_t size() const { return entries_.size(); }
  // How far the tickets of new requests would be ahead of their counters after a Renumber now.
  uint64_t TicketsAhead() const;
  // The ticket of the request with this counter since the last Renumber.
  Ticket TicketOf(uint64_t counter) const {
    return counter <= renumbered_.size() ? renumbered_[counter - 1]
                                         : base_ + (counter - renumbered_.size());
  }

  // Calls each(ticket, entry) for the unanswered requests.
  template <typename Each>
  void ForEachUnanswered(Each each) {
    for (auto& [ticket, entry] : entries_) {
      if (!entry.outcome) each(ticket, &entry);
    }
  }

  // For new rings: the unanswered requests in order, with new counters and marked as resent.
  std::vector<shm::Request> Renumber();

 private:
  std::unordered_map<Ticket, Entry> entries_;
  std::vector<Ticket> renumbered_;  // by counter of these rings, from 1: the ticket
  Ticket base_ = 0;                 // the last ticket when these rings were new
  Ticket last_ = 0;
};

}  // namespace tidepool::client
