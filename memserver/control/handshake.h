// ConnectionProtocol: what a trainer may send on its control socket, in which order, and what it
// means to the serve loop.
//
// One thread (control). It has no sockets: frames go in, events for the loop or answers come out,
// so that every order of frames can be tested. Numbers in frames are within their limits already
// (shm/frames.h); everything else is checked here.
//
//   kHello -Hello-> kSpec -SpecPart..-> kReserving -ReserveGranted-> kPreparing
//          -memory made-> kAttaching -Attached-> kOpen -Goodbye-> kLeaving
//   kHello -Resume-> kReserving, for a rank that comes back to another memserver
//   kHello -AskStates-> kGiving, for a process that is no rank
//
// While the server works (kReserving to kAttaching), while it gives states away, and after Goodbye
// the client must not send: a frame ends the connection.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/mailbox.h"
#include "memserver/control/spec_shelf.h"
#include "shm/frames.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

// How far a client has come.
enum class ConnectionState {
  kHello,
  kSpec,
  kReserving,
  kPreparing,
  kAttaching,
  kOpen,
  kLeaving,
  kGiving
};

// Memory that a rank already has: it comes back with it, or brings it.
struct ReturnedMemory {
  shm::RcacheKind kind;
  UniqueFd rcache;  // invalid for a rank that attaches anew and brings none
  UniqueFd flags;   // from a rank that comes back and had brought its rCache
  uint64_t flags_base = 0;
};

// The action for a frame: pass an event to the loop, answer at once, or neither.
struct FrameAction {
  std::optional<ControlEvent> event;
  std::optional<shm::Frame> answer;
  std::shared_ptr<shm::Segment> memory = {};  // its descriptor goes with the answer
};

// The descriptors that a packet may bring.
struct DescriptorCall {
  uint32_t most = 0;
  bool places = false;  // they are directories opened with O_PATH; else they are memory
};

class ConnectionProtocol {
 public:
  // `process_start` belongs to `pid` (ReadProcessStart). The shelf counts what the trainer makes
  // this process hold; null: not counted.
  ConnectionProtocol(ConnectionId connection, uint32_t uid, int32_t pid, uint64_t process_start,
                     SpecShelf* shelf = nullptr)
      : connection_(connection),
        uid_(uid),
        pid_(pid),
        process_start_(process_start),
        shelf_(shelf) {
    if (shelf_ != nullptr) held_ = shelf_->Open(uid_);
  }

  // Handles one frame. `fds` are exactly as many as the frame must bring. An error ends the
  // connection; its text is for the trainer and the log. Errors: kHandshakeBad, kAbiMismatch,
  // kJobSpecBad, kProtocolViolation, kNotReady (no memory for what it sends now: to be tried
  // again).
  Result<FrameAction> OnFrame(shm::Frame frame, std::vector<UniqueFd> fds);

  // The descriptors that a packet with this beginning may bring in the present state; most packets
  // may bring none.
  DescriptorCall CalledFor(std::span<const std::byte> head) const;

  ConnectionState state() const { return state_; }
  // The protocol version of this session, once the trainer has greeted.
  uint32_t agreed() const { return agreed_; }
  // The identity that a rank had before it came back; nothing for a rank that attaches anew.
  const std::optional<shm::ResumeFrame>& resume() const { return resume_; }
  // Memory that came with Hello or Resume, once; its descriptors are not checked yet.
  ReturnedMemory TakeMemory() { return std::move(memory_); }
  // The frame that tells the trainer why its connection ends: Ended if it is open, else Refused.
  shm::Frame LastWords(const Status& why) const;
  // The frame that tells the trainer that it is attached: Welcome or Resumed. From here on the job
  // is known, for a rank that came back as well.
  shm::Frame AnswerTo(const Attached& attached);
  // Follows the progress of the loop and the preparer.
  void SetState(ConnectionState state) { state_ = state; }
  void SaveEnded() { save_in_flight_ = false; }
  void StepsEnded() { steps_in_flight_ = false; }
  // True until the job description is complete, the part of the handshake that a time limit guards.
  bool HalfOpen() const {
    return state_ == ConnectionState::kHello || state_ == ConnectionState::kSpec;
  }

 private:
  Result<FrameAction> On(shm::HelloFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::ResumeFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::SpecPartFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::SchedulePartFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::SaveFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::StreamStatesFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::StreamStepsFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::AskStatesFrame frame, std::vector<UniqueFd> fds);
  Result<FrameAction> On(shm::GoodbyeFrame frame, std::vector<UniqueFd> fds);
  template <typename Other>
  Result<FrameAction> On(Other frame, std::vector<UniqueFd> fds);
  Result<FrameAction> CompleteSpec();
  Result<std::shared_ptr<const shm::JobSpec>> Decoded(std::span<const std::byte> bytes);
  Status Unexpected(const shm::Frame& frame) const;

  ConnectionId connection_;
  uint32_t uid_;
  int32_t pid_;
  uint64_t process_start_;
  SpecShelf* shelf_;
  PeerMemory::Share held_;  // received parts of a description or a schedule
  ConnectionState state_ = ConnectionState::kHello;
  uint32_t agreed_ = 0;
  shm::HelloFrame hello_;
  std::vector<std::byte> spec_bytes_;
  // Null for a rank that comes back, until it is attached.
  std::shared_ptr<const shm::JobSpec> spec_;
  std::optional<shm::ResumeFrame> resume_;
  ReturnedMemory memory_;
  std::vector<ChunkId> schedule_;
  bool save_in_flight_ = false;
  bool steps_in_flight_ = false;
};

// Checks that the frame brings as many descriptors as it must. Errors: kHandshakeBad.
Status CheckDescriptors(const shm::Frame& frame, size_t count);

// Checks the directory descriptor of a Save frame, which must be opened with O_PATH (so that it
// gives no right to read or write by itself).
// Errors: kProtocolViolation (not such a descriptor), kSaveFailed (a directory of another user;
// root may name any).
Status CheckSaveDirectory(int fd, uint32_t uid);

}  // namespace tidepool::memserver
