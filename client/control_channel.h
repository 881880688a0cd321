// ControlChannel: the trainer's end of the control socket; frames are subject to time limits.
//
// One thread. Owns the socket; closing it (the destructor) ends the session on the server. Its
// clock measures the time limits and outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "shm/frames.h"

namespace tidepool::client {

// A frame, and the descriptors that came with it.
struct ReceivedFrame {
  shm::Frame frame;
  std::vector<UniqueFd> fds;  // exactly as many as the frame requires
};

class ControlChannel {
 public:
  // Connects to the server of `socket_dir`; retries for `timeout_ns` if none is there yet. Errors:
  // kNoServer, kSocketFailed.
  static Result<ControlChannel> Open(Clock* clock, const std::string& socket_dir,
                                     int64_t timeout_ns);

  // Waits for room in the socket at most `timeout_ns`. Errors: kServerGone, kWaitTimeout.
  Status Send(const shm::Frame& frame, int64_t timeout_ns, std::span<const int> fds = {});
  // The next frame; nullopt when none has arrived. Errors: kServerGone (the socket is closed),
  // kHandshakeBad.
  Result<std::optional<ReceivedFrame>> Poll();
  // Waits for a frame. Errors: as Poll, and kWaitTimeout.
  Result<ReceivedFrame> Await(int64_t timeout_ns);
  Clock* clock() const { return clock_; }

 private:
  ControlChannel(Clock* clock, UniqueFd socket, std::string path)
      : clock_(clock), socket_(std::move(socket)), path_(std::move(path)) {}
  Status Gone() const;
  Clock* clock_;
  UniqueFd socket_;
  std::string path_;
};

}  // namespace tidepool::client
