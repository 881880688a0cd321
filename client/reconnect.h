// How a client gets a session in spite of a server that ends: attaching with patience, and coming
// back to the server that took the job over.
//
// One thread. Functions here block; each says how long. Only a lost connection, a server that is
// not there yet or not ready is waited for: every other answer is returned as it came.
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

// One wait, within a limit: pauses of 20 ms, doubling to 500 ms.
class Patience {
 public:
  // The clock outlives the object.
  Patience(Clock* clock, int64_t limit_ns);
  // Sleeps until the next try; false when the limit has passed.
  bool Pause();
  int64_t LeftNs() const;
  int64_t WaitedNs() const { return clock_->NowNs() - start_ns_; }

 private:
  Clock* clock_;
  int64_t start_ns_, limit_ns_, next_ns_;
};

// True for the answers after which a server may still come to serve this client.
bool MayComeBack(ErrorId id);
// kServerGone, for a wait that ended without a server; `last` is the error of the last try.
Status WaitedInVain(const Patience& patience, const Status& last);
// Calls options.on_wait, where there is one.
void Tell(const ClientOptions& options, const std::string& line);
// Calls what makes room on a GPU for the server, where there is something.
void MakeRoom(const ClientOptions& options, bool server_comes);

// A new session and its control socket.
struct Link {
  ControlChannel channel;
  AttachedSession session;
};
// Connects and attaches. A server that ends before Welcome is waited for and the attach is started
// over with the same nonce, for at most options.server_timeout_ns; a rank that is still attached is
// waited for where options.attach_retry says so.
// Errors: kNoServer, those of AttachSession; kServerGone (after the wait).
Result<Link> Attach(const ClientOptions& options, const std::string& socket_dir,
                    const shm::JobSpec& spec, const RankName& who);

// A session that has come back, and its control socket.
struct ReturnedLink {
  ControlChannel channel;
  ResumedSession session;
};
// One try to come back: connects and resumes. Errors: kNoServer, and those of ResumeSession.
Result<ReturnedLink> ComeBackOnce(Clock* clock, const std::string& socket_dir,
                                  const shm::ResumeFrame& frame, std::span<const int> memory_fds,
                                  int64_t timeout_ns);

}  // namespace tidepool::client
