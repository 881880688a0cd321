#include "memserver/control/handshake.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>

#include "base/planted.h"
#include "memserver/control/whole_order.h"
#include "shm/messages.h"
#include "shm/protocol.h"
#include "shm/state_stream.h"
#include "shm/spec/decode.h"
#include "shm/spec/encode.h"

namespace tidepool::memserver {

namespace {

// The most chunk uses in one declared schedule: each chunk a few times in forward and backward; 16
// MiB of ids.
constexpr uint32_t kScheduleUsesMax = 4u << 20;

const char* NameOf(ConnectionState state) {
  constexpr std::array<const char*, 8> kNames{"greeting",         "job description", "admission",
                                              "preparing memory", "attaching",       "open session",
                                              "after goodbye",    "giving states"};
  return kNames[static_cast<size_t>(state)];
}

Result<uint32_t> AgreeWith(const shm::ProtocolRange& client) {
  if (const auto agreed = shm::Agreed(client, shm::kOwnProtocols)) return *agreed;
  return Status(ErrorId::kAbiMismatch, "the trainer speaks protocol " + Text(client) +
                                           ", this memserver speaks " + Text(shm::kOwnProtocols))
      .Fix("install the next release of the older of the two, until they have a version in common");
}

// Rejects a brought rCache that was not agreed on: a client whose every version has brought memory,
// with a server of the next release whose agreed version has not. Neither sends such a frame.
Status CheckBrought(const shm::RcacheKind& rcache, uint32_t agreed) {
  if (!rcache.is_brought() || agreed >= shm::kAbiBrought) return Status();
  return Status(ErrorId::kHandshakeBad, "a rank brings its rCache in protocol version " +
                                            std::to_string(agreed) + ", which has no such thing");
}

}  // namespace

Status ConnectionProtocol::Unexpected(const shm::Frame& frame) const {
  return Status(ErrorId::kHandshakeBad,
                std::string("a ") + shm::NameOf(frame) + " frame came out of order")
      .Where(NameOf(state_));
}

DescriptorCall ConnectionProtocol::CalledFor(std::span<const std::byte> head) const {
  const shm::FrameType type = shm::TypeOf(head);
  if (type == shm::FrameType::kHello && state_ == ConnectionState::kHello) return {1, false};
  if (type == shm::FrameType::kResume && state_ == ConnectionState::kHello) return {2, false};
  if (type == shm::FrameType::kSave && state_ == ConnectionState::kOpen && !save_in_flight_)
    return {1, true};
  return {};
}

Result<FrameAction> ConnectionProtocol::OnFrame(shm::Frame frame, std::vector<UniqueFd> fds) {
  return std::visit([&](auto&& content) { return On(std::move(content), std::move(fds)); },
                    std::move(frame));
}

template <typename Other>
Result<FrameAction> ConnectionProtocol::On(Other frame, std::vector<UniqueFd>) {
  return Unexpected(std::move(frame));  // frames that only a server sends
}

Result<FrameAction> ConnectionProtocol::On(shm::HelloFrame frame, std::vector<UniqueFd> fds) {
  if (state_ != ConnectionState::kHello) return Unexpected(frame);
  TP_ASSIGN_OR_RETURN(agreed_, AgreeWith(frame.protocols));
  TP_RETURN_IF_ERROR(CheckBrought(frame.rcache, agreed_));
  if (frame.spec_bytes == 0)
    return Status(ErrorId::kHandshakeBad, "the greeting announces no job description");
  // Counts all that is announced now, so that a description that may begin may also be completed.
  TP_RETURN_IF_ERROR(held_.Resize(frame.spec_bytes));
  if (frame.rcache.is_brought()) memory_ = {frame.rcache, std::move(fds[0]), {}, 0};
  hello_ = frame;
  state_ = ConnectionState::kSpec;
  return FrameAction{};
}

Result<FrameAction> ConnectionProtocol::On(shm::ResumeFrame frame, std::vector<UniqueFd> fds) {
  if (state_ != ConnectionState::kHello) return Unexpected(frame);
  TP_ASSIGN_OR_RETURN(agreed_, AgreeWith(frame.protocols));
  const bool brought = frame.rcache.is_brought();
  TP_RETURN_IF_ERROR(CheckBrought(frame.rcache, agreed_));
  memory_ = {frame.rcache, std::move(fds[shm::kResumeRcache]),
             brought ? std::move(fds[shm::kResumeFlags]) : UniqueFd(), frame.flags_base};

  resume_ = frame;
  state_ = ConnectionState::kReserving;
  return FrameAction{ResumeSession{connection_, frame.rank, frame.job_nonce, frame.nonce,
                                   frame.rcache_bytes, uid_, pid_, brought},
                     {},
                     {}};
}

Result<FrameAction> ConnectionProtocol::On(shm::SpecPartFrame frame, std::vector<UniqueFd>) {
  if (state_ != ConnectionState::kSpec) return Unexpected(std::move(frame));
  if (frame.bytes.size() > hello_.spec_bytes - spec_bytes_.size()) {
    return Status(ErrorId::kHandshakeBad, "the job description is longer than announced");
  }
  spec_bytes_.reserve(hello_.spec_bytes);
  spec_bytes_.insert(spec_bytes_.end(), frame.bytes.begin(), frame.bytes.end());
  if (spec_bytes_.size() < hello_.spec_bytes) return FrameAction{};
  return CompleteSpec();
}

Result<std::shared_ptr<const shm::JobSpec>> ConnectionProtocol::Decoded(
    std::span<const std::byte> bytes) {
  if (shelf_ != nullptr) return shelf_->Decode(uid_, bytes, &held_);
  TP_ASSIGN_OR_RETURN(shm::JobSpec spec, shm::Decode(bytes));
  return std::make_shared<const shm::JobSpec>(std::move(spec));
}

Result<FrameAction> ConnectionProtocol::CompleteSpec() {
  const std::vector<std::byte> bytes = std::move(spec_bytes_);
  const uint64_t fingerprint = shm::Fingerprint(bytes);
  if (fingerprint != hello_.fingerprint)
    return Status(ErrorId::kHandshakeBad, "the job description does not match its fingerprint");
  TP_ASSIGN_OR_RETURN(spec_, Decoded(bytes));
  if (spec_->world != hello_.world)
    return Status(ErrorId::kHandshakeBad,
                  "greeting and job description name different numbers of ranks");

  state_ = ConnectionState::kReserving;
  const bool may_wait = (hello_.flags & shm::kHelloMayWait) != 0;
  const bool brought = hello_.rcache.is_brought();
  return FrameAction{
      ReserveJob{connection_, spec_, fingerprint, hello_.rank, uid_, pid_, hello_.nonce,
                 process_start_, may_wait, brought, std::move(hello_.note)},
      {},
      {}};
}

Result<FrameAction> ConnectionProtocol::On(shm::SchedulePartFrame frame, std::vector<UniqueFd>) {
  if (state_ != ConnectionState::kOpen) return Unexpected(std::move(frame));
  const auto known = [this](ChunkId chunk) {
    return spec_ != nullptr && chunk < spec_->chunks.size();
  };

  if (frame.total > kScheduleUsesMax ||
      frame.order.size() > frame.total - std::min<size_t>(frame.total, schedule_.size()) ||
      !std::all_of(frame.order.begin(), frame.order.end(), known)) {
    return Status(ErrorId::kProtocolViolation,
                  "a schedule names unknown chunks or is longer than announced");
  }

  TP_RETURN_IF_ERROR(held_.Resize((schedule_.size() + frame.order.size()) * sizeof(ChunkId)));
  schedule_.insert(schedule_.end(), frame.order.begin(), frame.order.end());
  if (schedule_.size() < frame.total) return FrameAction{};
  TP_RETURN_IF_ERROR(held_.Resize(0));
  const std::vector<ChunkId> declared = std::exchange(schedule_, {});
  return FrameAction{
      DeclareSchedule{connection_, WholeOrder(declared, spec_->chunks.size())}, {}, {}};
}

Result<FrameAction> ConnectionProtocol::On(shm::SaveFrame frame, std::vector<UniqueFd> fds) {
  if (state_ != ConnectionState::kOpen || save_in_flight_) return Unexpected(std::move(frame));
  const Status directory = CheckSaveDirectory(fds[0].get(), uid_);
  if (directory.id() == ErrorId::kProtocolViolation) return directory;
  if (!directory.ok()) return FrameAction{{}, shm::SaveDoneFrame{directory}, {}};
  save_in_flight_ = true;
  return FrameAction{
      SaveWeights{connection_, std::move(fds[0]), std::move(frame.name), frame.version, {}},
      {},
      {}};
}

Result<FrameAction> ConnectionProtocol::On(shm::StreamStatesFrame frame, std::vector<UniqueFd>) {
  if (state_ != ConnectionState::kOpen || save_in_flight_ || agreed_ < shm::kAbiStates)
    return Unexpected(frame);
  auto memory = shm::Segment::Create("tp-states", shm::kStreamBytes, shm::PeerAccess::kReadWrite);
  if (!memory.ok()) return FrameAction{{}, shm::SaveDoneFrame{memory.status()}, {}};
  save_in_flight_ = true;
  std::shared_ptr<shm::Segment> shared = std::move(memory).value();
  return FrameAction{SaveWeights{connection_, {}, "a checkpoint", frame.version, shared},
                     shm::StatesStreamFrame{}, shared};
}

Result<FrameAction> ConnectionProtocol::On(shm::StreamStepsFrame frame, std::vector<UniqueFd>) {
  if (state_ != ConnectionState::kOpen || steps_in_flight_ || agreed_ < shm::kAbiSteps)
    return Unexpected(frame);
  auto memory = shm::Segment::Create("tp-steps", shm::kStreamBytes, shm::PeerAccess::kReadWrite);
  if (!memory.ok()) return FrameAction{{}, shm::StepsEndedFrame{{memory.status()}}, {}};
  steps_in_flight_ = true;
  std::shared_ptr<shm::Segment> shared = std::move(memory).value();
  return FrameAction{StreamSteps{connection_, frame.version, shared}, shm::StepsStreamFrame{},
                     shared};
}

Result<FrameAction> ConnectionProtocol::On(shm::AskStatesFrame frame, std::vector<UniqueFd>) {
  if (state_ != ConnectionState::kHello) return Unexpected(frame);
  TP_ASSIGN_OR_RETURN(agreed_, AgreeWith(frame.protocols));
  if (agreed_ < shm::kAbiAsked)
    return Status(ErrorId::kHandshakeBad, "states are asked for in protocol version " +
                                              std::to_string(agreed_) +
                                              ", which has no such thing");

  auto memory = shm::Segment::Create("tp-states", shm::kStreamBytes, shm::PeerAccess::kReadWrite);
  state_ = ConnectionState::kGiving;
  if (!memory.ok()) return FrameAction{{}, shm::RefusedFrame{memory.status()}, {}};
  return FrameAction{
      AskStates{connection_, uid_, std::move(frame.job), std::move(memory).value()}, {}, {}};
}

Result<FrameAction> ConnectionProtocol::On(shm::GoodbyeFrame frame, std::vector<UniqueFd>) {
  if (state_ != ConnectionState::kOpen) return Unexpected(frame);
  state_ = ConnectionState::kLeaving;
  return FrameAction{Goodbye{connection_}, {}, {}};
}

shm::Frame ConnectionProtocol::LastWords(const Status& why) const {
  const bool open = state_ == ConnectionState::kOpen || state_ == ConnectionState::kLeaving;
  return open ? shm::Frame(shm::EndedFrame{why}) : shm::Frame(shm::RefusedFrame{why});
}

shm::Frame ConnectionProtocol::AnswerTo(const Attached& attached) {
  if (spec_ == nullptr) spec_ = attached.spec;
  if (resume_) return shm::ResumedFrame{agreed_, attached.session};

  shm::WelcomeFrame welcome;
  welcome.protocol = agreed_;
  welcome.session = attached.session;
  welcome.job = attached.job;
  welcome.job_nonce = attached.job_nonce;
  welcome.note = attached.note;
  welcome.pool_bytes = attached.pool_bytes;
  welcome.rcache_bytes = spec_->rcache_bytes;

  // Where the run continues.
  welcome.weights_ready = attached.weights_ready ? 1 : 0;
  welcome.sealed_version = attached.sealed_version;
  welcome.attempt = attached.attempt;
  welcome.data_cursor = attached.data_cursor;
  welcome.random_state = attached.random_state;
  welcome.loss_scale = attached.loss_scale;
  welcome.scaler_steps = attached.scaler_steps;
  welcome.last_skipped = attached.last_skipped ? 1 : 0;
  return welcome;
}

Status CheckDescriptors(const shm::Frame& frame, size_t count) {
  if (count == shm::FdsOf(frame) || TP_PLANTED("jobs.descriptors_uncounted")) return Status();
  return Status(ErrorId::kHandshakeBad, std::string("a ") + shm::NameOf(frame) +
                                            " frame came with " + std::to_string(count) +
                                            " descriptors");
}

Status CheckSaveDirectory(int fd, uint32_t uid) {
  struct statx about {};
  const int flags = fcntl(fd, F_GETFL);
  // Asks only for what the kernel has known since the directory was opened, so that an unreachable
  // file server is not asked.
  constexpr int kUnasked = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  if (flags < 0 || (flags & O_PATH) == 0 ||
      statx(fd, "", kUnasked, STATX_TYPE | STATX_UID, &about) != 0 || !S_ISDIR(about.stx_mode)) {
    return Status(ErrorId::kProtocolViolation,
                  "the descriptor sent with Save is not an O_PATH descriptor of a directory");
  }
  if (about.stx_uid == uid || uid == 0) return Status();
  return Status(ErrorId::kSaveFailed, "the directory belongs to user " +
                                          std::to_string(about.stx_uid) +
                                          ", the trainer runs as user " + std::to_string(uid))
      .Fix("save into a directory of your own");
}

}  // namespace tidepool::memserver
