// RequestLog: the requests whose outcomes have not been taken, by ticket, and the counters under
// which the server knows them.
//
// One thread. Invariants:
//  1. a ticket is never reused; tickets count from 1 in the order of the requests;
//  2. counters belong to one pair of rings and count from 1. Up to the first Renumber a ticket is
//     its request's counter; Renumber gives the unanswered requests the counters 1 to n in the
//     order of their tickets, and later requests go on from n + 1.
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
    shm::Request request;                    // as it was sent last
    std::optional<Result<Outcome>> outcome;  // until Wait takes it
  };

  RequestLog();

  // Gives `request` its counter and keeps a copy.
  Ticket Add(shm::Request* request);
  // Forgets the newest request, which was never sent.
  void TakeBack(Ticket ticket);
  // Forgets a request whose outcome has been taken.
  void Remove(Ticket ticket) { entries_.erase(ticket); }

  // Entries stay where they are until they are removed. Null when there is none.
  Entry* Find(Ticket ticket);
  // By the counter in a completion: null also when it was answered before, and for numbers that
  // were never given.
  Entry* FindUnanswered(uint64_t counter);
  size_t size() const { return entries_.size(); }
  // By how much the tickets of new requests would exceed their counters after a Renumber now.
  uint64_t TicketsAhead() const;
  // The ticket of the request that has this counter since the last Renumber.
  Ticket TicketOf(uint64_t counter) const {
    return counter <= renumbered_.size() ? renumbered_[counter - 1]
                                         : base_ + (counter - renumbered_.size());
  }

  // Calls each(ticket, entry) for the requests without an answer.
  template <typename Each>
  void ForEachUnanswered(Each each) {
    for (auto& [ticket, entry] : entries_) {
      if (!entry.outcome) each(ticket, &entry);
    }
  }

  // For new rings: the unanswered requests in their order, with new counters and marked as sent
  // before.
  std::vector<shm::Request> Renumber();

 private:
  std::unordered_map<Ticket, Entry> entries_;
  std::vector<Ticket> renumbered_;  // ticket of counter 1, 2, ... of these rings
  Ticket base_ = 0;                 // the last ticket when these rings were new
  Ticket last_ = 0;
};

}  // namespace tidepool::client
