// ConnectionProtocol: what a trainer may say on its control socket, in which order, and what it means to the serve loop.
//
// One thread (control). No sockets in here: frames go in, events for the loop or answers come out, so that every order of frames can be
// tested. Numbers of frames are within their limits already (shm/frames.h); everything else is checked here.
//
//   kHello -Hello-> kSpec -SpecPart..-> kReserving -ReserveGranted-> kPreparing -memory made-> kAttaching -Attached-> kOpen -Goodbye->
//   kLeaving
// While the server works (kReserving to kAttaching) and after Goodbye the trainer has nothing to say: a frame ends the connection.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/jobs/mailbox.h"
#include "shm/frames.h"
#include "shm/job_spec.h"

namespace tidepool::memserver {

enum class ConnectionState { kHello, kSpec, kReserving, kPreparing, kAttaching, kOpen, kLeaving };

// What to do about a frame: pass an event to the loop, answer at once, or neither.
struct FrameAction {
  std::optional<ControlEvent> event;
  std::optional<shm::Frame> answer;
};

class ConnectionProtocol {
 public:
  ConnectionProtocol(ConnectionId connection, uint32_t uid, int32_t pid) : connection_(connection), uid_(uid), pid_(pid) {}

  // `fds` are exactly as many as the frame must bring. An error ends the connection; its text is for the trainer and the log.
  // Errors: kHandshakeBad, kAbiMismatch, kJobSpecBad, kProtocolViolation.
  Result<FrameAction> OnFrame(shm::Frame frame, std::vector<UniqueFd> fds);

  ConnectionState state() const { return state_; }
  // Of the job description; 0 before it is complete.
  uint64_t rcache_bytes() const { return spec_ ? spec_->rcache_bytes : 0; }
  // The loop's and the preparer's progress.
  void SetState(ConnectionState state) { state_ = state; }
  void SaveEnded() { save_in_flight_ = false; }
  // True until the job description is complete: the part of the handshake that a time limit guards.
  bool HalfOpen() const { return state_ == ConnectionState::kHello || state_ == ConnectionState::kSpec; }

 private:
  Result<FrameAction> On(shm::HelloFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::SpecPartFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::SchedulePartFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::SaveFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::GoodbyeFrame frame, std::vector<UniqueFd> fds);
  template <typename Other>
  Result<FrameAction> On(Other frame, std::vector<UniqueFd> fds);
  Result<FrameAction> CompleteSpec();
  Status Unexpected(const shm::Frame& frame) const;

  ConnectionId connection_;
  uint32_t uid_;
  int32_t pid_;
  ConnectionState state_ = ConnectionState::kHello;
  shm::HelloFrame hello_;
  std::vector<std::byte> spec_bytes_;
  std::shared_ptr<const shm::JobSpec> spec_;
  std::vector<ChunkId> schedule_;
  bool save_in_flight_ = false;
};

// The directory descriptor of a Save frame must be opened with O_PATH (so that it gives no right to read or write by itself).
// Errors: kProtocolViolation (not such a descriptor), kSaveFailed (a directory of another user; root may name any).
Status CheckSaveDirectory(int fd, uint32_t uid);

}  // namespace tidepool::memserver
