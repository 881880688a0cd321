// Fuzz target: ConnectionProtocol: frames in any order, with descriptors of any kind, between
// whatever the serve loop and the preparer of memory say (attacks A1 and A9 of the reliability
// notes).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "base/check.h"
#include "memserver/admin/reports/residency_columns.h"
#include "memserver/control/handshake.h"
#include "shm/messages.h"
#include "shm/spec/decode.h"
#include "shm/spec/encode.h"
#include "shm/spec/validate.h"
#include "tests/fuzz/descriptor_watch.h"
#include "tests/fuzz/fuzzed_spec.h"

namespace tidepool::memserver {
namespace {

using fuzz::FuzzInput;
using Bytes = std::vector<std::byte>;

constexpr ConnectionId kConnection = 7;
constexpr uint32_t kUid = 1000;

UniqueFd MadeMemfd(bool sealed) {
  UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  TP_CHECK(fd.valid() && ftruncate(fd.get(), 4096) == 0, "a memfd");
  if (sealed)
    TP_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seals");
  return fd;
}

UniqueFd MadePipeEnd() {
  std::array<int, 2> ends{};
  TP_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0, "a pipe");
  close(ends[1]);
  return UniqueFd(ends[0]);
}

UniqueFd MadeDescriptor(FuzzInput* input) {
  switch (input->Choice(7)) {
    case 0: return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
    case 1: return MadeMemfd(true);
    case 2: return MadeMemfd(false);
    case 3: return MadePipeEnd();
    case 4: return UniqueFd(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    case 5: return UniqueFd(open("/dev/null", O_PATH | O_CLOEXEC));
    default: return UniqueFd(open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
}

// One connection: the trainer's side sends what the input says, the server's side goes on as the
// control thread would.
class Connection {
 public:
  explicit Connection(FuzzInput* input)
      : input_(input), protocol_(kConnection, input->OneIn(4) ? 0 : kUid, 4242, 99) {}

  void Run() {
    while (input_->Left() > 0 && !ended_) {
      switch (input_->Choice(12)) {
        case 0: LoopAnswers(); break;
        case 1: protocol_.SaveEnded(); break;
        case 2: Receive(input_->Bytes(input_->Number<uint16_t>() % 512)); break;
        case 3: SendGreeting(); break;
        case 4: SendSpec(); break;
        case 5: Send(ResumeOf()); break;
        case 6: Send(ScheduleOf()); break;
        case 7: Send(shm::SaveFrame{input_->Byte(), "weights" + input_->Text(3)}); break;
        case 8: Send(shm::GoodbyeFrame{}); break;
        case 9: SendServersFrame(); break;
        default: GoOn(); break;
      }
    }
  }

 private:
  void Send(const shm::Frame& frame) { Receive(shm::EncodeFrame(frame)); }

  // As the reactor does with a packet: a frame that is none, or comes with another number of
  // descriptors, ends the connection.
  void Receive(std::span<const std::byte> bytes) {
    auto frame = shm::DecodeFrame(bytes);
    if (!frame.ok()) return;  // skipped instead, so that the run goes on
    std::vector<UniqueFd> fds;
    for (uint32_t i = shm::FdsOf(*frame); i > 0; --i) fds.push_back(MadeDescriptor(input_));
    auto action = protocol_.OnFrame(std::move(*frame), std::move(fds));
    if (!action.ok()) {
      CheckRefusal(action.status());
      return;
    }
    if (action->answer)
      TP_CHECK(!shm::EncodeFrame(*action->answer).empty(), "an answer can be sent");
    if (action->event) std::visit([this](const auto& event) { Check(event); }, *action->event);
  }

  void CheckRefusal(const Status& status) {
    ended_ = true;
    const ErrorId id = status.id();
    TP_CHECK(id == ErrorId::kHandshakeBad || id == ErrorId::kAbiMismatch ||
                 id == ErrorId::kJobSpecBad || id == ErrorId::kProtocolViolation,
             "a refusal has one of the documented reasons");
    TP_CHECK(!shm::EncodeFrame(shm::RefusedFrame{status}).empty(), "a refusal can be sent");
  }

  // What the loop may rely on without a look at it.
  void Check(const ReserveJob& event) {
    TP_CHECK(
        event.connection == kConnection && event.spec != nullptr && shm::Validate(*event.spec).ok(),
        "a sound specification");
    TP_CHECK(event.rank < event.spec->world && event.nonce != 0, "a rank of the job");
    TP_CHECK(!asked_ && protocol_.state() == ConnectionState::kReserving, "a connection asks once");
    asked_ = true;
    CheckColumns(event.spec);
  }
  // The residency picture, whose columns and ranges go by the names of the job's tensors.
  void CheckColumns(const std::shared_ptr<const shm::JobSpec>& spec) {
    JobRow job;
    job.spec = spec;
    job.chunks.resize(spec->chunks.size() + spec->frozen.size());
    for (const Column& column : ColumnsOf(job, ResidencyBy::kExpert)) {
      TP_CHECK(!column.chunks.empty() && column.chunks.back() < job.chunks.size(),
               "a column has chunks of the job");
    }
    for (const ExpertRange& range : ExpertRangesOf(job)) {
      TP_CHECK(range.first <= range.last && range.first_chunk <= range.last_chunk &&
                   range.last_chunk < job.chunks.size() && !range.layer.empty(),
               "a range names experts and chunks of the job");
    }
  }
  void Check(const ResumeSession& event) {
    TP_CHECK(event.rank < shm::kRanksMax && event.nonce != 0, "a rank of a job");
    TP_CHECK(!asked_ && protocol_.state() == ConnectionState::kReserving, "a connection asks once");
    asked_ = true;
  }
  void Check(const DeclareSchedule& event) {
    TP_CHECK(open_ && event.order != nullptr && !event.order->empty(),
             "a schedule of an open session");
  }
  void Check(const SaveWeights& event) {
    TP_CHECK(open_ && shm::IsPlainFileName(event.name), "a file name that stays in its directory");
    TP_CHECK((fcntl(event.directory.get(), F_GETFL) & O_PATH) != 0,
             "a descriptor that gives no right");
  }
  void Check(const AskStates& event) {
    TP_CHECK(!event.job.empty() && event.memory != nullptr, "a job's name, and memory");
    TP_CHECK(!asked_ && protocol_.state() == ConnectionState::kGiving, "a connection asks once");
    asked_ = true;
  }
  void Check(const Goodbye&) {
    TP_CHECK(open_ && protocol_.state() == ConnectionState::kLeaving, "a session ends once");
    open_ = false;
  }
  template <typename Other>
  void Check(const Other&) {
    TP_CHECK(false, "events that no trainer can cause");
  }

  // The serve loop and the preparer, one step further.
  void LoopAnswers() {
    if (protocol_.state() == ConnectionState::kReserving) {
      protocol_.SetState(ConnectionState::kPreparing);
      const ReturnedMemory memory = protocol_.TakeMemory();
      const bool back = protocol_.resume().has_value(), brought = memory.kind.is_brought();
      TP_CHECK(memory.rcache.valid() == (back || brought),
               "memory comes with a rank that comes back, or brings it");
      TP_CHECK(memory.flags.valid() == (back && brought), "flags come with one that had them");
      TP_CHECK(!brought || protocol_.agreed() >= shm::kAbiBrought, "a version that knows it");
    } else if (protocol_.state() == ConnectionState::kPreparing) {
      protocol_.SetState(ConnectionState::kAttaching);
    } else if (protocol_.state() == ConnectionState::kAttaching) {
      Attached attached{.connection = kConnection, .session = 3, .job = 2};
      if (auto spec = shm::Decode(spec_bytes_); spec.ok())
        attached.spec = std::make_shared<const shm::JobSpec>(std::move(spec).value());
      TP_CHECK(!shm::EncodeFrame(protocol_.AnswerTo(attached)).empty(), "an answer");
      protocol_.SetState(ConnectionState::kOpen);
      open_ = true;
    }
  }

  // A whole handshake, so that the run comes to an open session.
  void GoOn() {
    if (protocol_.state() == ConnectionState::kHello) {
      input_->OneIn(3) ? Send(ResumeOf()) : SendGreeting();
    } else if (protocol_.state() == ConnectionState::kSpec) {
      SendSpec();
    } else {
      LoopAnswers();
    }
  }

  shm::ProtocolRange Protocols() {
    if (!input_->OneIn(16)) return shm::kOwnProtocols;
    const uint32_t lowest = input_->Byte();
    return {lowest, input_->OneIn(2) ? input_->Byte() : lowest};
  }
  void SendGreeting() {
    const shm::JobSpec spec = fuzz::FuzzedSpec(input_);
    spec_bytes_ = shm::Encode(spec);
    Disturb(input_, input_->OneIn(8) ? 2 : 0, spec_bytes_);
    shm::HelloFrame hello;
    hello.protocols = Protocols();
    hello.world = spec.world;
    hello.rank = input_->OneIn(16) ? input_->Byte() : 0;
    hello.spec_bytes =
        input_->OneIn(16) ? OddNumber(input_, spec_bytes_.size()) : spec_bytes_.size();
    hello.fingerprint = shm::Fingerprint(spec_bytes_) + (input_->OneIn(16) ? 1 : 0);
    hello.nonce = input_->OneIn(16) ? input_->Byte() : 5;
    if (input_->OneIn(4)) hello.rcache = Brought();
    Send(hello);
  }
  void SendSpec() {
    const size_t part = input_->OneIn(4) ? 1 + input_->Byte() : shm::kPartBytesMax;
    std::span<const std::byte> rest(spec_bytes_);
    while (!rest.empty() && !ended_ && protocol_.state() == ConnectionState::kSpec) {
      const auto now = rest.first(std::min(part, rest.size()));
      Send(shm::SpecPartFrame{{now.begin(), now.end()}});
      rest = rest.subspan(now.size());
    }
  }
  shm::RcacheKind Brought() {
    shm::RcacheKind kind{static_cast<shm::MemoryForm>(input_->Choice(shm::kMemoryFormMax + 2)), {}};
    if (!input_->OneIn(8)) kind.gpu[input_->Choice(16)] = input_->Byte();
    return kind;
  }
  shm::Frame ResumeOf() {
    shm::ResumeFrame resume{Protocols(), input_->Byte(), input_->Byte(), input_->Byte(), 4096};
    if (!input_->OneIn(4)) return resume;
    resume.rcache = Brought();
    resume.flags_base = input_->OneIn(2) ? input_->Byte() : OddNumber(input_, shm::kFlagsBaseMax);
    return resume;
  }
  shm::Frame ScheduleOf() {
    shm::SchedulePartFrame part;
    for (uint32_t uses = 1 + input_->Choice(6); uses > 0; --uses)
      part.order.push_back(input_->OneIn(16) ? input_->Number<uint32_t>() : 0);
    part.total = input_->OneIn(4) ? static_cast<uint32_t>(OddNumber(input_, part.order.size()))
                                  : static_cast<uint32_t>(part.order.size());
    return part;
  }
  void SendServersFrame() {
    switch (input_->Choice(5)) {
      case 0: return Send(shm::WelcomeFrame{});
      case 1: return Send(shm::EndedFrame{Status(ErrorId::kSessionEnded, input_->Text(20))});
      case 2: return Send(shm::PeerLostFrame{input_->Byte()});
      case 3: return Send(shm::ResumedFrame{shm::kAbiVersion, input_->Byte()});
      default: return Send(shm::SaveDoneFrame{});
    }
  }

  FuzzInput* const input_;
  ConnectionProtocol protocol_;
  Bytes spec_bytes_;
  bool asked_ = false, open_ = false, ended_ = false;
};

}  // namespace
}  // namespace tidepool::memserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tidepool::fuzz::DescriptorWatch watch;
  {
    tidepool::fuzz::FuzzInput input(data, size);
    tidepool::memserver::Connection(&input).Run();
  }
  watch.CheckSame();
  return 0;
}
