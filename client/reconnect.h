// How a client gets a session although servers end: attaching with retries, and resuming at the
// server that took the job over.
//
// One thread. Functions here block; each says for how long. They retry only after a lost
// connection, or while the server is missing or not ready; they return every other answer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "client/attach.h"
#include "client/client_options.h"
#include "client/control_channel.h"
#include "shm/frames.h"
#include "shm/spec/job_spec.h"
#include "shm/port.h"

namespace tidepool::client {

// One wait with a limit: pauses from 20 ms, doubling to 500 ms.
class Patience {
 public:
  // The clock outlives the object.
  Patience(Clock* clock, int64_t limit_ns);
  // Sleeps until the next try; false after the limit.
  bool Pause();
  int64_t LeftNs() const;
  int64_t WaitedNs() const { return clock_->NowNs() - start_ns_; }

 private:
  Clock* clock_;
  int64_t start_ns_, limit_ns_, next_ns_;
};

// True for answers after which a server may still come to serve this client.
bool MayComeBack(ErrorId id);
// kServerGone, for a wait that ended without a server; `last`: the error of the last try.
Status WaitedInVain(const Patience& patience, const Status& last);
// Calls options.on_wait, if set.
void Tell(const ClientOptions& options, const std::string& line);
// Calls the callback that makes room on a GPU for the server, if set.
void MakeRoom(const ClientOptions& options, bool server_comes);

// A new session and its control socket.
struct Link {
  ControlChannel channel;
  AttachedSession session;
};
// Connects and attaches. If a server ends before Welcome, waits and attaches again with the same
// nonce, for at most options.server_timeout_ns; waits for a rank that is still attached if
// options.attach_retry is set. Errors: kNoServer, those of AttachSession; kServerGone (after the
// wait).
Result<Link> Attach(const ClientOptions& options, const std::string& socket_dir,
                    const shm::JobSpec& spec, const RankName& who);

// A resumed session, and its control socket.
struct ReturnedLink {
  ControlChannel channel;
  ResumedSession session;
};
// One try to resume: connects and resumes. Errors: kNoServer, and those of ResumeSession.
Result<ReturnedLink> ComeBackOnce(Clock* clock, const std::string& socket_dir,
                                  const shm::ResumeFrame& frame, std::span<const int> memory_fds,
                                  int64_t timeout_ns);

}  // namespace tidepool::client
