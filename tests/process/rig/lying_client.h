// LyingClient: a trainer whose every byte the test writes itself: frames on the socket, words in
// the rings.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/control_channel.h"
#include "shm/channel_layout.h"
#include "shm/frames.h"
#include "shm/spec/job_spec.h"
#include "shm/messages.h"
#include "shm/segment.h"

namespace tidepool::testing {

class LyingClient {
 public:
  // An honest handshake of rank `rank`; everything after it may be a lie. Errors: as AttachSession
  // of the client.
  static Result<std::unique_ptr<LyingClient>> Attach(const std::string& socket_dir,
                                                     const shm::JobSpec& spec, Rank rank = 0);

  shm::SubmissionHeader* header() {
    return reinterpret_cast<shm::SubmissionHeader*>(submission_->data());
  }
  shm::RingSlot* slot(uint64_t index) {
    return reinterpret_cast<shm::RingSlot*>(submission_->data() + shm::kRingOffset) + index;
  }
  std::byte* rcache() { return rcache_->data(); }
  client::ControlChannel& channel() { return channel_; }
  // The descriptors that it shares with the server.
  int doorbell_fd() const { return doorbell_.get(); }
  std::array<int, 3> segment_fds() const {
    return {submission_->fd(), completion_->fd(), rcache_->fd()};
  }

  // Appends a request as it is and rings the doorbell. `counter` 0 is replaced by the next honest
  // one.
  void Submit(shm::Request request);
  void Ring();
  // The next completion; false after `timeout_ns`.
  bool Await(shm::Completion* completion, int64_t timeout_ns);
  // The reason in the Ended frame that must come within 5 s.
  Status AwaitEnd();
  // Honest weights for every chunk; ends with an error when one is refused.
  Status PutAllWeights(const shm::JobSpec& spec, Rank rank = 0);

 private:
  explicit LyingClient(client::ControlChannel channel) : channel_(std::move(channel)) {}
  client::ControlChannel channel_;
  std::unique_ptr<shm::Segment> submission_, completion_, rcache_;
  UniqueFd doorbell_;
  uint64_t position_ = 0, completions_ = 0;
};

// Hello and SpecPart frames of a job, as an honest client sends them.
std::vector<shm::Frame> GreetingOf(const shm::JobSpec& spec, Rank rank);

}  // namespace tidepool::testing
