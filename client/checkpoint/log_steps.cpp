#include "client/checkpoint/log_steps.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/checkpoint/step_log_writer.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/system/futex.h"
#include "shm/segment.h"
#include "shm/state_stream.h"

namespace tidepool::client {
namespace {

constexpr int64_t kLookNs = 200 * kNsPerMs;
// A trainer that is gone, and a memserver that says nothing more for so long, have both ended.
constexpr int64_t kAloneNs = shm::kStreamStuckNs;

// The version of the newest whole checkpoint of this run; 0: none.
uint64_t NewestOf(const std::string& checkpoints, uint64_t run) {
  auto found = FindCheckpoints(checkpoints);
  if (!found.ok()) return 0;
  for (auto it = found->rbegin(); it != found->rend(); ++it) {
    if (it->state.ok() && StepLogRunOf(it->path) == run) return it->version;
  }
  return 0;
}

// Makes the names in a folder safe: a checkpoint gets its name before the folder is synced.
bool SyncNames(const std::string& folder) {
  const UniqueFd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return opened.valid() && fsync(opened.get()) == 0;
}

// Syncs the log on a thread of its own. A thread that the drive holds is left alone.
class Syncer {
 public:
  Syncer(std::shared_ptr<StepLogWriter> writer, const LogTask& task,
         std::shared_ptr<shm::Segment> memory)
      : shared_(std::make_shared<Shared>()), limit_ns_(task.sync_limit_ns), clock_(task.clock) {
    shared_->writer = std::move(writer);
    shared_->memory = std::move(memory);
    shared_->has_base = task.previous != 0;
    shared_->checkpoints = task.checkpoints;
    shared_->run = task.run;
    shared_->clock = task.clock;
    thread_ = std::thread([shared = shared_] { shared->Main(); });
  }
  ~Syncer() {
    {
      const std::scoped_lock lock(shared_->mutex);
      shared_->stops = true;
    }
    shared_->wake.notify_one();
    IsStuck() ? thread_.detach() : thread_.join();
  }

  // A step was appended; `rolled`: a segment was begun behind it.
  void Note(bool rolled) {
    {
      const std::scoped_lock lock(shared_->mutex);
      shared_->trims |= rolled;
    }
    shared_->wake.notify_one();
  }
  // Errors: what ended the syncs; kSaveFailed: the drive does not answer.
  Status Check() {
    if (IsStuck())
      return Status(ErrorId::kSaveFailed, "the drive of the log of steps does not answer");
    const std::scoped_lock lock(shared_->mutex);
    return shared_->failed;
  }

 private:
  struct Shared {
    void Main() {
      std::unique_lock lock(mutex);
      while (!stops && failed.ok()) {
        const bool due = writer->appended() > writer->synced();
        if (!due && !trims && has_base) {
          wake.wait_for(lock, std::chrono::nanoseconds(kLookNs));
          continue;
        }
        const bool trim = trims;
        begun_ns = clock->NowNs();

        lock.unlock();
        Status done = due ? writer->Sync() : Status();
        bool trimmed = false;
        if (done.ok() && trim) done = Trim(&trimmed);
        if (done.ok()) TellSafe();
        lock.lock();
        begun_ns = 0;
        failed = std::move(done);
        if (trimmed) trims = false;
        if (!due && !trimmed) wake.wait_for(lock, std::chrono::nanoseconds(kLookNs));
      }
    }
    // Steps are safe when they are synced, and the checkpoint that they follow is whole. A log that
    // follows another one has its checkpoint already.
    void TellSafe() {
      has_base = has_base || Newest() != 0;
      shm::StreamHead* const head = shm::HeadOf(memory->data());
      const uint64_t safe =
          TP_PLANTED("checkpoint.unsynced_told") ? writer->appended() : writer->synced();
      if (!has_base || head->safe.load(std::memory_order_relaxed) == safe) return;
      head->safe.store(safe, std::memory_order_release);
      head->safe_changes.fetch_add(1, std::memory_order_release);
      WakeWord(&head->safe_changes);
      TP_POINT("writer.safe_told");
    }
    // The version of the newest whole checkpoint of this run that a power cut leaves; 0: none.
    uint64_t Newest() {
      const uint64_t whole = NewestOf(checkpoints, run);
      if (whole != named && !SyncNames(checkpoints)) return 0;
      named = whole;
      return whole;
    }
    // A checkpoint of this run behind the newest segment's base makes the others needless.
    Status Trim(bool* trimmed) {
      const uint64_t whole = Newest();
      if (whole == 0 || whole == trimmed_at) return {};
      trimmed_at = whole;
      *trimmed = whole >= writer->segment_base();
      return writer->Trim(whole);
    }

    std::shared_ptr<StepLogWriter> writer;
    std::shared_ptr<shm::Segment> memory;
    bool has_base = false;  // the thread's alone
    std::string checkpoints;
    uint64_t run = 0, trimmed_at = 0;
    uint64_t named = 0;  // the checkpoint whose name was made safe last
    Clock* clock = nullptr;
    std::mutex mutex;  // of all below; not held while the drive works
    std::condition_variable wake;
    bool stops = false;
    bool trims = true;  // other runs' segments may be needless
    int64_t begun_ns = 0;
    Status failed;
  };
  bool IsStuck() {
    const std::scoped_lock lock(shared_->mutex);
    return shared_->begun_ns != 0 && clock_->NowNs() - shared_->begun_ns > limit_ns_;
  }

  std::shared_ptr<Shared> shared_;
  const int64_t limit_ns_;
  Clock* const clock_;
  std::thread thread_;
};

// Moves the steps from the stream to the log.
class StepDrain {
 public:
  StepDrain(const LogTask& task, std::byte* memory, StepLogWriter* writer, Syncer* syncer)
      : task_(task),
        memory_(memory),
        head_(shm::HeadOf(memory)),
        writer_(writer),
        syncer_(syncer) {}

  Status All() {
    for (;;) {
      TP_ASSIGN_OR_RETURN(const bool more, Await());
      if (!more) return {};
      TP_RETURN_IF_ERROR(TakePiece());
      head_->taken.store(++taken_, std::memory_order_release);
      WakeWord(&head_->taken);
    }
  }

 private:
  // False at the end of the stream.
  Result<bool> Await() {
    int64_t alone_ns = 0;
    for (;;) {
      const uint32_t given = head_->given.load(std::memory_order_acquire);
      const auto ended = static_cast<shm::StreamEnd>(head_->end.load(std::memory_order_acquire));
      if (ended == shm::StreamEnd::kWhole) return taken_ != head_->pieces;
      TP_RETURN_IF_ERROR(syncer_->Check());
      if (ended == shm::StreamEnd::kFailed && (taken_ == head_->pieces || given == taken_))
        return Status(ErrorId::kSaveFailed, "memserver has given the log up; its own log says why");
      if (given != taken_) return true;

      const int64_t now_ns = task_.clock->NowNs();
      const bool alone = task_.trainer != 0 && kill(task_.trainer, 0) != 0 && errno == ESRCH;
      if (!alone) alone_ns = now_ns;
      const bool over = task_.over != nullptr && task_.over->load(std::memory_order_relaxed);
      if (over || now_ns - alone_ns > kAloneNs) return false;
      WaitOnWord(&head_->given, given, kLookNs);
    }
  }

  Status TakePiece() {
    const shm::StreamPiece piece = *shm::PieceOf(memory_, taken_);
    const std::span bytes(shm::SlotOf(memory_, taken_),
                          std::min(piece.bytes, shm::kStreamSlotBytes));
    if (piece.bytes > shm::kStreamSlotBytes) return BadPiece();
    if (piece.plane == shm::kStreamGradients)
      return writer_->Gradients(piece.parameter, piece.first, bytes);
    if (piece.plane != shm::kStreamStep || piece.bytes != sizeof(LoggedStep)) return BadPiece();

    LoggedStep step;
    std::memcpy(&step, bytes.data(), sizeof step);
    TP_RETURN_IF_ERROR(writer_->EndStep(step));
    const bool rolls = task_.every != 0 && step.version % task_.every == 0;
    if (rolls) TP_RETURN_IF_ERROR(writer_->Roll());
    syncer_->Note(rolls);
    return {};
  }

  static Status BadPiece() {
    return Status(ErrorId::kDataBad, "a piece came from memserver that is none of a step");
  }

  const LogTask& task_;
  std::byte* const memory_;
  shm::StreamHead* const head_;
  StepLogWriter* const writer_;
  Syncer* const syncer_;
  uint32_t taken_ = 0;
};

Status LogInto(const LogTask& task, const std::shared_ptr<shm::Segment>& memory) {
  TP_ASSIGN_OR_RETURN(std::unique_ptr<StepLogWriter> made,
                      StepLogWriter::Begin({.folder = task.folder,
                                            .run = task.run,
                                            .previous = task.previous,
                                            .base = task.base,
                                            .model = task.model,
                                            .fault = task.fault}));

  const std::shared_ptr<StepLogWriter> writer = std::move(made);
  Status drained;
  {
    Syncer syncer(writer, task, memory);
    drained = StepDrain(task, memory->data(), writer.get(), &syncer).All();
    const Status synced = syncer.Check();
    if (!synced.ok()) return drained.ok() ? synced : drained;
  }
  // What came before the stream ended is safe, however it ended.
  const Status ended = writer->End();
  return drained.ok() ? ended : drained;
}

}  // namespace

Status LogSteps(LogTask task) {
  TP_ASSIGN_OR_RETURN(
      const std::shared_ptr<shm::Segment> memory,
      shm::Segment::Map(std::move(task.memory), shm::kStreamBytes, shm::PeerAccess::kReadWrite));
  shm::StreamHead* const head = shm::HeadOf(memory->data());
  head->here.store(1, std::memory_order_release);
  Status logged = LogInto(task, memory);
  // Releases updates that wait for this reader.
  head->left.store(1, std::memory_order_release);
  WakeWord(&head->taken);
  return logged;
}

}  // namespace tidepool::client
