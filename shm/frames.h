// The frames of the control socket, which request, grant, inform and end a session
// (docs/shm_protocol.md draws them).
//
// Any thread; value types. One packet carries one frame: a 16-byte header {magic, type, reserved,
// payload length, reserved}, then the payload. DecodeFrame takes a peer's bytes: it checks every
// length, and its result holds only numbers within their limits. In every version, Hello and Resume
// begin with the client's protocol versions; a newer client may append fields to those of this
// version.
//
//   trainer                                  memserver
//   Hello (+ rCache, when the rank
//   brings it), SpecPart x n            ->
//                                       <-   Queued, when it asked to wait for room and there is
//                                            none yet; again when there is
//                                       <-   Welcome (+ submission, completion, rCache, doorbell;
//                                            the flag pages in place of an rCache that the rank
//                                            brought) | Refused
//   SchedulePart x n,
//   Save (+ directory)                  ->
//                                       <-   SaveDone, PeerLost, Ended
//   StreamStates                        ->
//                                       <-   StatesStream (+ memory), then SaveDone
//   StreamSteps                         ->
//                                       <-   StepsStream (+ memory), then StepsEnded
//   Goodbye                             ->
//                                       <-   Ended (ok), when the session is taken down; a server
//                                            that dies says nothing
//
// after memserver has ended and another one serves the same kept memory:
//   Resume (+ rCache, and the flag
//   pages where the rank brought its
//   rCache)                             ->
//                                       <-   Resumed (+ submission, completion, doorbell) | Refused
//
// a process that is no rank, and writes a job's states as its user:
//   AskStates                           ->
//                                       <-   StatesGiven (+ memory, specification), then SaveDone |
//                                            Refused
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "shm/fd_socket.h"
#include "shm/protocol.h"

namespace tidepool::shm {

inline constexpr uint32_t kFrameMagic = 0x46445054;  // "TPDF"
inline constexpr size_t kFrameHeaderBytes = 16;
// Payload bytes of one SpecPart or SchedulePart.
inline constexpr size_t kPartBytesMax = kPacketBytesMax - 256;
inline constexpr size_t kFrameTextMax = 2048;  // of each part of an error text
inline constexpr size_t kFileNameMax = 128;    // of a saved file
// The largest flags_base of Resume: far from where flags wrap, and from the poison value.
inline constexpr uint64_t kFlagsBaseMax = uint64_t{1} << 62;
// Order of the descriptors of Welcome. For a rank that brought its rCache, kFdRcache refers to the
// flag pages (flag_pages.h).
enum WelcomeFd : uint32_t {
  kFdSubmission = 0,
  kFdCompletion = 1,
  kFdRcache = 2,
  kFdDoorbell = 3,
  kWelcomeFds = 4
};
// Order of the descriptors of Resume; the second only from a rank that brought its rCache.
enum ResumeFd : uint32_t { kResumeRcache = 0, kResumeFlags = 1 };
// Order of the descriptors of Resumed.
enum ResumedFd : uint32_t {
  kResumedSubmission = 0,
  kResumedCompletion = 1,
  kResumedDoorbell = 2,
  kResumedFds = 3
};

// A flag of Hello: the rank waits in the server's queue if there is no room for its job now.
// Servers that know no flags refuse it.
inline constexpr uint32_t kHelloMayWait = 1;
inline constexpr uint32_t kHelloFlags = kHelloMayWait;

// The export form of an rCache's memory, by its number on the wire, as in device::ExportForm.
enum class MemoryForm : uint32_t { kHost = 0, kVmm = 1, kIpc = 2 };
inline constexpr uint32_t kMemoryFormMax = 2;

// The rCache of a rank: memory that the server makes (kHost), or GPU memory that the rank brings.
// Since version 5; before it, kHost.
struct RcacheKind {
  MemoryForm form = MemoryForm::kHost;
  std::array<uint8_t, 16> gpu = {};  // its uuid; zeros for kHost
  // True if the rank made the memory.
  bool is_brought() const { return form != MemoryForm::kHost; }
  friend bool operator==(const RcacheKind&, const RcacheKind&) = default;
};

// Asks for a session. The first frame of a connection, unless it is Resume.
struct HelloFrame {
  ProtocolRange protocols;  // that the client speaks
  uint32_t rank = 0, world = 0;
  int32_t pid = 0;  // for messages only; the kernel is asked for everything else
  uint64_t spec_bytes = 0;
  uint64_t fingerprint = 0;
  // Random, chosen by the client, not 0: identifies this incarnation of the rank, even when it
  // comes back.
  uint64_t nonce = 0;
  uint32_t flags = 0;  // kHelloMayWait
  RcacheKind rcache = {};
  // The label of the run, up to kRunNoteMax bytes that only trainers interpret; empty: none. The
  // server keeps the label of the job's first rank. Since version 6.
  std::string note = {};
};  // + one descriptor when the rCache is brought: the memory, exported
// A piece of the encoded specification (shm/spec/job_spec.h).
struct SpecPartFrame {
  std::vector<std::byte> bytes;
};  // parts come in order and make up spec_bytes
// Grants the session, and reports the state of the job.
struct WelcomeFrame {
  uint32_t protocol = 0;  // the version of this session: one of Hello
  uint32_t session = 0, job = 0;
  uint64_t rcache_bytes = 0;
  uint32_t weights_ready = 0;
  float loss_scale = 1;
  uint64_t sealed_version = 0, data_cursor = 0, random_state = 0, pool_bytes = 0;
  uint32_t scaler_steps = 0;
  uint64_t job_nonce = 0;     // identifies the job's states in kept memory
  uint32_t last_skipped = 0;  // 1: the sealed step was skipped because a gradient overflowed
  std::string note = {};      // from the job's first rank; since version 6
  uint32_t attempt = 0;       // at the open step, as in a request's flags; since version 7
};
// Refuses the session.
struct RefusedFrame {
  Status why;
};
// A piece of the order in which the rank uses chunks.
struct SchedulePartFrame {
  uint32_t total = 0;  // chunk uses in the whole schedule; the part that completes it ends it
  std::vector<ChunkId> order;
};
// Asks for the job's weights in a file.
struct SaveFrame {
  uint64_t version = 0;
  std::string name;
};  // + one O_PATH descriptor of the directory
// The result of the save.
struct SaveDoneFrame {
  Status result;
};
// Ends the rank's session.
struct GoodbyeFrame {};
// Reports that the session is over, and why.
struct EndedFrame {
  Status why;
};
// Reports that another rank of the job is gone: the open step is dropped.
struct PeerLostFrame {
  uint32_t rank = 0;
};

// Reattaches a rank to the server that adopted the kept memory. Carries the rCache memory of its
// Welcome if a memserver made it; else the memory that the rank brought, and the flag pages of its
// Welcome, which a memserver made.
struct ResumeFrame {
  ProtocolRange protocols;
  uint32_t rank = 0;
  uint64_t job_nonce = 0, nonce = 0, rcache_bytes = 0;
  RcacheKind rcache = {};
  // With a brought rCache, the flags of request n of the new rings hold n + flags_base.
  uint64_t flags_base = 0;
};
// Accepts Resume: rings and doorbell are new, the rCache is unchanged.
struct ResumedFrame {
  uint32_t protocol = 0;  // of the session from now on
  uint32_t session = 0;
};

// Sent while the rank waits for room, and only if it said in Hello that it may wait. Welcome or
// Refused follows when its turn has come.
struct QueuedFrame {
  uint32_t place = 0;  // 1: next in the queue
  Status why;          // ok: its turn has come, and its memory is prepared
};

// Asks for all states of the job at this version, through memory that the server makes. Since
// version 9.
struct StreamStatesFrame {
  uint64_t version = 0;
};
// Answers StreamStates at once; the states come through the memory (state_stream.h). SaveDone
// follows when all of it was copied, or will not be.
struct StatesStreamFrame {};  // + the memory
// Asks for the gradients and records of all steps from the sealed version on, through memory that
// the server makes. Since version 10.
struct StreamStepsFrame : StreamStatesFrame {};
// Answers StreamSteps at once. StepsEnded follows when no further step comes.
struct StepsStreamFrame : StatesStreamFrame {};  // + the memory
// How a stream of steps has ended.
struct StepsEndedFrame : SaveDoneFrame {};

// Asks for all states of a job that this user may read, at its sealed version. The first frame of a
// connection that is no rank's. Since version 10.
struct AskStatesFrame {
  ProtocolRange protocols;  // that the client speaks
  std::string job;          // number or name
};
// Order of the descriptors of StatesGiven.
enum GivenFd : uint32_t { kGivenStates = 0, kGivenSpec = 1, kGivenFds = 2 };
// Answers AskStates at once: the states come through the memory (state_stream.h). SaveDone follows
// when all of it was copied, or will not be.
struct StatesGivenFrame {
  uint64_t version = 0;
  uint64_t spec_bytes = 0;  // of the encoded specification, from the start of its memory
  std::string note = {};    // label of the job's run
};

// The position of a type in this list, plus 1, is its number on the wire.
using Frame =
    std::variant<HelloFrame, SpecPartFrame, WelcomeFrame, RefusedFrame, SchedulePartFrame,
                 SaveFrame, SaveDoneFrame, GoodbyeFrame, EndedFrame, PeerLostFrame, ResumeFrame,
                 ResumedFrame, QueuedFrame, StreamStatesFrame, StatesStreamFrame, StreamStepsFrame,
                 StepsStreamFrame, StepsEndedFrame, AskStatesFrame, StatesGivenFrame>;

// Frames that a trainer may send with descriptors, by their numbers on the wire.
enum class FrameType : uint16_t { kOther = 0, kHello = 1, kSave = 6, kResume = 11 };
// The type of a packet, from its first bytes (PacketHead of fd_socket.h); kOther if they are no
// frame. Nothing else of it is checked.
FrameType TypeOf(std::span<const std::byte> head);

// Encodes header and payload of one packet.
std::vector<std::byte> EncodeFrame(const Frame& frame);
// Decodes a packet. Errors: kHandshakeBad.
Result<Frame> DecodeFrame(std::span<const std::byte> bytes);
// The number of descriptors that must come with the frame: no more, no fewer.
uint32_t FdsOf(const Frame& frame);
// "Hello", ...: for messages.
const char* NameOf(const Frame& frame);

// True for a file name that stays in its directory: 1 to kFileNameMax characters, no slash, no
// control characters, neither "." nor "..".
bool IsPlainFileName(const std::string& name);

}  // namespace tidepool::shm
