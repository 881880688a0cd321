// ServerLanes: what memserver itself did for the job, as lanes of a rank's trace: its copies for
// each rank, and the work of each of its workers.
//
// One thread; pure, but for ServerRecord, which asks memserver's admin socket and blocks meanwhile.
// Flows lead from the last update of a chunk to the copy that brings it to a rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "client/admin/ask_spans.h"

namespace tidepool::trainer {

class TraceEvents;

// The number of memserver's process in a trace: above those of all ranks.
inline constexpr uint64_t kServerProcess = 1'000'000;

// By how much the server's clock is ahead of the asker's, if the server's time was `server_ns` some
// time between `asked_ns` and `answered_ns`. Processes of one machine have the same monotonic
// clock: then it is 0. In another time namespace, the server is taken to have answered halfway.
int64_t NsAhead(int64_t server_ns, int64_t asked_ns, int64_t answered_ns);

// Adds a process with the lanes "fetches of rank N", "gradients of rank N", "weights of rank N" and
// "worker N", as far as there are spans. Their times are those of the other events' clock.
void AddServerLanes(const std::vector<client::ServerSpan>& spans, TraceEvents* events);

// The record of one job at its memserver.
class ServerRecord {
 public:
  // `socket_dir`: empty: the default directory. The clock outlives the object.
  ServerRecord(const Clock* clock, std::string socket_dir, std::string job)
      : clock_(clock), socket_dir_(std::move(socket_dir)), job_(std::move(job)) {}

  // Has memserver record from now on. Errors: as client::RecordSpans.
  Status Begin() const;
  // The spans that began at or after `since_ns`, by this process's clock; ends the record.
  // Errors: as client::AskSpans; kServerGone if a memserver that was started later answers.
  Result<std::vector<client::ServerSpan>> Take(int64_t since_ns) const;

 private:
  const Clock* const clock_;
  const std::string socket_dir_, job_;
};

}  // namespace tidepool::trainer
