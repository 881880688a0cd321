#include "shm/port.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/planted.h"
#include "base/units.h"
#include "shm/futex.h"
#include "shm/shared_load.h"

namespace tidepool::shm {

namespace {

// The first client position of a batch is published at the latest after this many items.
constexpr uint64_t kPublishEvery = kRingEntries / 4;
// So many requests of a batch reach the server at once; more would leave it idle.
constexpr uint64_t kBatchMax = 16;
// Distance of the client's prefetch; measured, with bench_ring.
constexpr uint64_t kSlotsAhead = 32;
// Words that the other side seldom changes are read once in so many looks at an empty ring, and before each sleep: each look would fetch a
// line that it just wrote.
constexpr uint32_t kLooksPerSideLook = 64;

SubmissionHeader* Submission(const Segment& segment) {
  return reinterpret_cast<SubmissionHeader*>(segment.data());
}
CompletionHeader* Completions(const Segment& segment) {
  return reinterpret_cast<CompletionHeader*>(segment.data());
}

RingSlot* SlotAt(const Segment& segment, uint64_t position) {
  return reinterpret_cast<RingSlot*>(segment.data() + kRingOffset) + position % kRingEntries;
}

// The words are atomics because the other process may write them at any time; relaxed, because the sequence orders an honest writer. Word
// by word from the shared line to the item and back, without a copy between: read in other widths, that one would have to wait for its
// stores.
template <typename T>
void LoadPayload(const RingSlot& slot, T* item) {
  static_assert(sizeof(T) == kPayloadWords * sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
#pragma GCC unroll 7
  for (uint32_t i = 0; i < kPayloadWords; ++i) {
    const uint64_t word = SharedLoad(slot.words[i], std::memory_order_relaxed);
    std::memcpy(reinterpret_cast<std::byte*>(item) + i * sizeof word, &word, sizeof word);
  }
}

template <typename T>
void StorePayload(RingSlot* slot, const T& item) {
  static_assert(sizeof(T) == kPayloadWords * sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
#pragma GCC unroll 7
  for (uint32_t i = 0; i < kPayloadWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const std::byte*>(&item) + i * sizeof word, sizeof word);
    slot->words[i].store(word, std::memory_order_relaxed);
  }
}

// Takes the line from the other side's cache before it is written: else each of its stores waits in turn. Where the CPU does not know the
// instruction, it does nothing.
void PrefetchForWrite([[maybe_unused]] const RingSlot* slot) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*slot));
#endif
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Result<std::unique_ptr<ServerPort>> ServerPort::Create(SessionId session, uint32_t protocol) {
  std::unique_ptr<ServerPort> port(new ServerPort());
  TP_ASSIGN_OR_RETURN(port->submission_, Segment::Create("tidepool-submission", kChannelBytes, PeerAccess::kReadWrite));
  TP_ASSIGN_OR_RETURN(port->completion_, Segment::Create("tidepool-completion", kChannelBytes, PeerAccess::kReadOnly));
  port->doorbell_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!port->doorbell_.valid())
    return Status(ErrorId::kInternal, "no descriptor left for a doorbell of session " + std::to_string(session));
  auto* submission = new (port->submission_->data()) SubmissionHeader{};
  submission->magic = kSubmissionMagic;
  submission->abi = protocol;
  auto* completion = new (port->completion_->data()) CompletionHeader{};
  completion->magic = kCompletionMagic;
  completion->abi = protocol;
  completion->session = session;
  return port;
}

PopResult ServerPort::Pop(Request* request) {
  const RingSlot* slot = SlotAt(*submission_, submissions_popped_);
  const uint64_t sequence = SharedLoad(slot->sequence, std::memory_order_seq_cst);
  if (sequence == submissions_popped_ + 1) {
    LoadPayload(*slot, request);
    ++submissions_popped_;
    if (submissions_popped_ - submissions_published_ >= kPublishEvery) PublishPopped();
    return PopResult::kItem;
  }
  // An honest client leaves only the item of the last lap here, or nothing in the first.
  const uint64_t last_lap = submissions_popped_ >= kRingEntries ? submissions_popped_ + 1 - kRingEntries : 0;
  if ((TP_PLANTED("shm.double_fetch") ? SharedLoad(slot->sequence, std::memory_order_seq_cst) : sequence) != last_lap)
    return PopResult::kViolation;
  if (empty_looks_++ % kLooksPerSideLook == 0 && !ReadConsumed()) return PopResult::kViolation;
  if (submissions_popped_ != submissions_published_) PublishPopped();
  return PopResult::kEmpty;
}

void ServerPort::PublishPopped() {
  submissions_published_ = submissions_popped_;
  Completions(*completion_)->submissions_consumed.store(submissions_published_, std::memory_order_release);
}

bool ServerPort::ReadConsumed() {
  const uint64_t consumed = SharedLoad(Submission(*submission_)->completions_consumed, std::memory_order_acquire);
  if (consumed < completions_consumed_ || consumed > completions_pushed_) return false;
  completions_consumed_ = consumed;
  return true;
}

bool ServerPort::Push(const Completion& completion) {
  if (completions_pushed_ - completions_consumed_ >= kRingEntries) {
    if (!ReadConsumed() || completions_pushed_ - completions_consumed_ >= kRingEntries) return false;
  }
  RingSlot* slot = SlotAt(*completion_, completions_pushed_);
  StorePayload(slot, completion);
  // Release is enough: Wake orders it before its look at the client.
  slot->sequence.store(++completions_pushed_, std::memory_order_release);
  return true;
}

void ServerPort::Wake() {
  CompletionHeader* header = Completions(*completion_);
  header->wake_word.fetch_add(1, std::memory_order_seq_cst);
  if (SharedLoad(Submission(*submission_)->client_waiting, std::memory_order_seq_cst) != 0 && !TP_PLANTED("shm.wake_lost"))
    WakeWord(&header->wake_word);
}

void ServerPort::SetSleeping(bool sleeping) {
  auto& word = Completions(*completion_)->server_sleeping;
  if (!sleeping) return word.store(0, std::memory_order_relaxed);
  empty_looks_ = 0;
  sleep_ = std::max(sleep_ + 1, kUnnumberedSleep + 1);  // after 2^32 sleeps it starts anew
  word.store(sleep_, std::memory_order_seq_cst);
}

void ServerPort::End(ErrorId reason) {
  CompletionHeader* header = Completions(*completion_);
  header->ended.store(static_cast<uint32_t>(reason), std::memory_order_release);
  header->wake_word.fetch_add(1, std::memory_order_seq_cst);
  WakeWord(&header->wake_word);
}

Result<std::unique_ptr<ClientPort>> ClientPort::Map(UniqueFd submission, UniqueFd completion, UniqueFd doorbell, uint32_t protocol) {
  std::unique_ptr<ClientPort> port(new ClientPort());
  TP_ASSIGN_OR_RETURN(port->submission_, Segment::Map(std::move(submission), kChannelBytes, PeerAccess::kReadWrite));
  TP_ASSIGN_OR_RETURN(port->completion_, Segment::Map(std::move(completion), kChannelBytes, PeerAccess::kReadOnly));
  port->doorbell_ = std::move(doorbell);
  const SubmissionHeader* down = Submission(*port->submission_);
  const CompletionHeader* up = Completions(*port->completion_);
  if (down->magic != kSubmissionMagic || up->magic != kCompletionMagic || !port->doorbell_.valid()) {
    return Status(ErrorId::kHandshakeBad, "the memory that the server sent does not hold the rings of a session");
  }
  if (down->abi != protocol || up->abi != protocol) {
    return Status(ErrorId::kAbiMismatch, "memserver's rings have protocol version " + std::to_string(up->abi) +
                                             ", the session was to have " + std::to_string(protocol));
  }
  return port;
}

bool ClientPort::Push(const Request& request, More more) {
  if (!HasRoom()) {
    PublishBatch();
    return false;
  }
  PrefetchForWrite(SlotAt(*submission_, submissions_pushed_ + kSlotsAhead));
  const uint64_t position = submissions_pushed_++;
  // The server looks at one slot only, the next that it will read, which is the first of the batch: nothing is written there before the
  // others are, so that it fetches none of these lines too early.
  if (position == submissions_published_) {
    first_ = request;
  } else {
    RingSlot* slot = SlotAt(*submission_, position);
    StorePayload(slot, request);
    slot->sequence.store(position + 1, std::memory_order_release);
  }
  if (more == More::kNo || submissions_pushed_ - submissions_published_ == kBatchMax) PublishBatch();
  return true;
}

void ClientPort::PublishBatch() {
  if (submissions_published_ == submissions_pushed_) return;
  RingSlot* slot = SlotAt(*submission_, submissions_published_);
  StorePayload(slot, first_);
  // Sequentially consistent, not only release: this side next looks whether the server sleeps, and the server looks at this word after it
  // said that it will sleep. One of the two must see the other.
  slot->sequence.store(submissions_published_ + 1, std::memory_order_seq_cst);
  submissions_published_ = submissions_pushed_;
  RingForSleep();
}

bool ClientPort::HasRoom() {
  if (submissions_pushed_ - submissions_consumed_ < kRingEntries) return true;
  submissions_consumed_ = Completions(*completion_)->submissions_consumed.load(std::memory_order_acquire);
  return submissions_pushed_ - submissions_consumed_ < kRingEntries;
}

// Whoever wakes for the first ring of a sleep looks at the ring before the next sleep, and finds what was pushed meanwhile.
void ClientPort::RingForSleep() {
  const uint32_t sleep = Completions(*completion_)->server_sleeping.load(std::memory_order_seq_cst);
  if (sleep == 0 || (sleep == rung_sleep_ && sleep != kUnnumberedSleep)) return;
  rung_sleep_ = sleep;
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(doorbell_.get(), &one, sizeof one);
}

bool ClientPort::CompletionThere() const {
  return SlotAt(*completion_, completions_popped_)->sequence.load(std::memory_order_acquire) == completions_popped_ + 1;
}

bool ClientPort::Pop(Completion* completion) {
  if (!CompletionThere()) return false;
  LoadPayload(*SlotAt(*completion_, completions_popped_), completion);
  ++completions_popped_;
  Submission(*submission_)->completions_consumed.store(completions_popped_, std::memory_order_release);
  return true;
}

void ClientPort::WaitForCompletion(int64_t timeout_ns, int64_t spin_ns) {
  const CompletionHeader* header = Completions(*completion_);
  const SteadyClock clock;
  const int64_t start = clock.NowNs();
  const int64_t spin_end = start + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
  do {
    for (uint32_t i = 0; i < kLooksPerSideLook; ++i) {
      if (CompletionThere()) return;
      Pause();
    }
    if (Ended()) return;
  } while (clock.NowNs() < spin_end);

  // The order is: remember the word, look at the ring, say that we wait, look at the word again. The server changes the word before it
  // looks whether we wait, so either it wakes us or we see the change.
  const uint32_t seen = header->wake_word.load(std::memory_order_seq_cst);
  if (CompletionThere() || Ended()) return;
  auto& waiting = Submission(*submission_)->client_waiting;
  waiting.store(1, std::memory_order_seq_cst);
  const int64_t left = timeout_ns - (clock.NowNs() - start);
  if (left > 0 && header->wake_word.load(std::memory_order_seq_cst) == seen) WaitOnWord(&header->wake_word, seen, left);
  waiting.store(0, std::memory_order_relaxed);
}

std::optional<ErrorId> ClientPort::Ended() const {
  const uint32_t reason = Completions(*completion_)->ended.load(std::memory_order_acquire);
  if (reason == 0) return std::nullopt;
  return ErrorEntryOf(static_cast<ErrorId>(reason)).id;
}

}  // namespace tidepool::shm
