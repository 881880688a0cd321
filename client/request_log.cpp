#include "client/request_log.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace tidepool::client {

RequestLog::RequestLog() {
  entries_.reserve(kTicketsMax);
}

Ticket RequestLog::Add(shm::Request* request) {
  ++last_;
  request->counter = last_ - base_ + renumbered_.size();
  entries_.emplace(last_, Entry{*request, {}});
  return last_;
}

void RequestLog::TakeBack(Ticket ticket) {
  TP_CHECK(ticket == last_, "only the newest request can be taken back");
  entries_.erase(ticket);
  --last_;
}

RequestLog::Entry* RequestLog::Find(Ticket ticket) {
  const auto found = entries_.find(ticket);
  return found == entries_.end() ? nullptr : &found->second;
}

RequestLog::Entry* RequestLog::FindUnanswered(uint64_t counter) {
  if (counter == 0) return nullptr;
  Entry* entry = Find(TicketOf(counter));
  return entry == nullptr || entry->outcome || entry->request.counter != counter ? nullptr : entry;
}

uint64_t RequestLog::TicketsAhead() const {
  const auto unanswered = [](const auto& each) { return !each.second.outcome.has_value(); };
  return last_ - static_cast<uint64_t>(std::count_if(entries_.begin(), entries_.end(), unanswered));
}

std::vector<shm::Request> RequestLog::Renumber() {
  renumbered_.clear();
  for (const auto& [ticket, entry] : entries_) {
    if (!entry.outcome) renumbered_.push_back(ticket);
  }
  std::sort(renumbered_.begin(), renumbered_.end());
  if (TP_PLANTED("client.resent_out_of_order"))
    std::reverse(renumbered_.begin(), renumbered_.end());

  base_ = last_;
  std::vector<shm::Request> requests;
  for (const Ticket ticket : renumbered_) {
    shm::Request& request = Find(ticket)->request;
    if (!TP_PLANTED("client.counters_go_on")) request.counter = requests.size() + 1;
    // The same four bytes in all kinds of requests.
    if (!TP_PLANTED("client.resent_unmarked")) request.flags |= shm::kResubmitted;
    requests.push_back(request);
  }
  return requests;
}

}  // namespace tidepool::client
