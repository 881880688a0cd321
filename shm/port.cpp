#include "shm/port.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/system/futex.h"
#include "base/units.h"
#include "shm/shared_load.h"

namespace tidepool::shm {

namespace {

// Words that the other side seldom changes are read once per this many polls of an empty ring, and
// before each sleep: each read would fetch a line that the other side just wrote.
constexpr uint32_t kLooksPerSideLook = 64;

SubmissionHeader* Submission(const Segment& segment) {
  return reinterpret_cast<SubmissionHeader*>(segment.data());
}
CompletionHeader* Completions(const Segment& segment) {
  return reinterpret_cast<CompletionHeader*>(segment.data());
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Result<std::unique_ptr<ServerPort>> ServerPort::Create(SessionId session, uint32_t protocol) {
  std::unique_ptr<ServerPort> port(new ServerPort());
  TP_ASSIGN_OR_RETURN(port->submission_, Segment::Create("tidepool-submission", kChannelBytes,
                                                         PeerAccess::kReadWrite));
  TP_ASSIGN_OR_RETURN(port->completion_,
                      Segment::Create("tidepool-completion", kChannelBytes, PeerAccess::kReadOnly));
  port->doorbell_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!port->doorbell_.valid())
    return Status(ErrorId::kInternal,
                  "no descriptor left for a doorbell of session " + std::to_string(session));

  auto* submission = new (port->submission_->data()) SubmissionHeader{};
  submission->magic = kSubmissionMagic;
  submission->abi = protocol;
  auto* completion = new (port->completion_->data()) CompletionHeader{};
  completion->magic = kCompletionMagic;
  completion->abi = protocol;
  completion->session = session;

  port->protocol_ = protocol;
  return port;
}

TP_HOT PopResult ServerPort::PopNothing(uint64_t sequence) {
  // An honest client leaves only the item of the last lap here, or, in the first lap, nothing.
  const uint64_t last_lap =
      submissions_popped_ >= kRingEntries ? submissions_popped_ + 1 - kRingEntries : 0;
  if (TP_PLANTED("shm.double_fetch"))
    sequence =
        SharedLoad(SlotAt(*submission_, submissions_popped_)->sequence, std::memory_order_seq_cst);
  if (sequence != last_lap) return PopResult::kViolation;
  if (empty_looks_++ % kLooksPerSideLook == 0 && !ReadConsumed()) return PopResult::kViolation;
  if (submissions_popped_ != submissions_published_) PublishPopped();
  return PopResult::kEmpty;
}

TP_HOT void ServerPort::PublishPopped() {
  submissions_published_ = submissions_popped_;
  Completions(*completion_)
      ->submissions_consumed.store(submissions_published_, std::memory_order_release);
}

bool ServerPort::ReadConsumed() {
  const uint64_t consumed =
      SharedLoad(Submission(*submission_)->completions_consumed, std::memory_order_acquire);
  if (consumed < completions_consumed_ || consumed > completions_pushed_) return false;
  completions_consumed_ = consumed;
  return true;
}

bool ServerPort::FindRoom() {
  return ReadConsumed() && completions_pushed_ - completions_consumed_ < kRingEntries;
}

TP_HOT void ServerPort::Wake() {
  CompletionHeader* header = Completions(*completion_);
  header->wake_word.fetch_add(1, std::memory_order_seq_cst);
  if (SharedLoad(Submission(*submission_)->client_waiting, std::memory_order_seq_cst) != 0 &&
      !TP_PLANTED("shm.wake_lost"))
    WakeWord(&header->wake_word);
}

TP_HOT void ServerPort::SetSleeping(bool sleeping) {
  auto& word = Completions(*completion_)->server_sleeping;
  if (!sleeping) return word.store(0, std::memory_order_relaxed);
  empty_looks_ = 0;
  sleep_ = std::max(sleep_ + 1, kUnnumberedSleep + 1);  // restarts after 2^32 sleeps
  word.store(sleep_, std::memory_order_seq_cst);
}

void ServerPort::End(ErrorId reason) {
  CompletionHeader* header = Completions(*completion_);
  header->ended.store(static_cast<uint32_t>(reason), std::memory_order_release);
  header->wake_word.fetch_add(1, std::memory_order_seq_cst);
  WakeWord(&header->wake_word);
}

Result<std::unique_ptr<ClientPort>> ClientPort::Map(UniqueFd submission, UniqueFd completion,
                                                    UniqueFd doorbell, uint32_t protocol) {
  std::unique_ptr<ClientPort> port(new ClientPort());
  TP_ASSIGN_OR_RETURN(port->submission_,
                      Segment::Map(std::move(submission), kChannelBytes, PeerAccess::kReadWrite));
  TP_ASSIGN_OR_RETURN(port->completion_,
                      Segment::Map(std::move(completion), kChannelBytes, PeerAccess::kReadOnly));
  port->doorbell_ = std::move(doorbell);

  const SubmissionHeader* down = Submission(*port->submission_);
  const CompletionHeader* up = Completions(*port->completion_);
  if (down->magic != kSubmissionMagic || up->magic != kCompletionMagic ||
      !port->doorbell_.valid()) {
    return Status(ErrorId::kHandshakeBad,
                  "the memory that the server sent does not hold the rings of a session");
  }
  if (down->abi != protocol || up->abi != protocol) {
    return Status(ErrorId::kAbiMismatch,
                  "memserver's rings have protocol version " + std::to_string(up->abi) +
                      ", the session was to have " + std::to_string(protocol));
  }

  port->protocol_ = protocol;
  return port;
}

bool ClientPort::FindRoom() {
  submissions_consumed_ =
      Completions(*completion_)->submissions_consumed.load(std::memory_order_acquire);
  if (submissions_pushed_ - submissions_consumed_ < kRingEntries) return true;
  if (submissions_published_ != submissions_pushed_) Publish(first_);
  return false;
}

// A side that wakes for the first ring of a sleep checks its ring before the next sleep, and finds
// items pushed meanwhile.
void ClientPort::RingForSleep(uint32_t sleep) {
  if (sleep == rung_sleep_ && sleep != kUnnumberedSleep) return;
  rung_sleep_ = sleep;
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(doorbell_.get(), &one, sizeof one);
}

bool ClientPort::LookForCompletion() const {
  for (uint32_t i = 0; i < kLooksPerSideLook; ++i) {
    if (CompletionThere()) return true;
    Pause();
  }
  return Ended().has_value();
}

void ClientPort::WaitForCompletion(Clock* clock, int64_t timeout_ns, int64_t spin_ns) {
  // Before the clock is read: an answer may take no longer than that.
  if (spin_ns > 0 && LookForCompletion()) return;
  const CompletionHeader* header = Completions(*completion_);
  const int64_t start = clock->NowNs();
  const int64_t spin_end = start + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
  do {
    if (LookForCompletion()) return;
  } while (clock->NowNs() < spin_end);

  // The order is: remember the word, check the ring, announce the wait, check the word again. The
  // server changes the word before it checks for a wait, so either it wakes us or we see the
  // change.
  const uint32_t seen = header->wake_word.load(std::memory_order_seq_cst);
  if (CompletionThere() || Ended()) return;
  auto& waiting = Submission(*submission_)->client_waiting;
  waiting.store(1, std::memory_order_seq_cst);
  const int64_t left = timeout_ns - (clock->NowNs() - start);
  if (left > 0 && header->wake_word.load(std::memory_order_seq_cst) == seen)
    clock->SleepOnWord(&header->wake_word, seen, left);
  waiting.store(0, std::memory_order_relaxed);
}

std::optional<ErrorId> ClientPort::Ended() const {
  const uint32_t reason = Completions(*completion_)->ended.load(std::memory_order_acquire);
  if (reason == 0) return std::nullopt;
  return ErrorEntryOf(static_cast<ErrorId>(reason)).id;
}

}  // namespace tidepool::shm
