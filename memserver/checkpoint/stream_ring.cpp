#include "memserver/checkpoint/stream_ring.h"

#include <string>

#include "base/system/futex.h"

namespace tidepool::memserver {
namespace {

constexpr int64_t kRingLookNs = 100 * kNsPerMs;  // poll interval of the marks
constexpr int64_t kComeNs = kNsPerSecond;        // time for the reader to start

}  // namespace

// Notes what the reader has taken.
Status StreamRing::LookAtReader() {
  const uint32_t taken = head_->taken.load(std::memory_order_acquire);
  const bool lies = taken - taken_ > given_ - taken_;
  if (head_->left.load(std::memory_order_acquire) != 0 || lies)
    return Failed("the process that writes it has ended");
  taken_ = taken;
  return {};
}

Status StreamRing::Check() {
  TP_RETURN_IF_ERROR(LookAtReader());
  if (parts_.stop->load(std::memory_order_relaxed)) return Failed("memserver ends");
  if (NobodyComes()) return Failed("who asked for it has ended, and nobody reads");
  return {};
}

Status StreamRing::AwaitSlot() {
  int64_t end = parts_.clock->NowNs() + parts_.stuck_ns;
  for (;;) {
    const uint32_t before = taken_;
    TP_RETURN_IF_ERROR(LookAtReader());
    if (given_ - taken_ < shm::kStreamSlots) return {};

    TP_RETURN_IF_ERROR(Check());
    if (taken_ != before) end = parts_.clock->NowNs() + parts_.stuck_ns;
    if (parts_.clock->NowNs() >= end)
      return Failed("the process that writes it takes nothing: its file system does not answer");
    WaitOnWord(&head_->taken, taken_, kRingLookNs);
  }
}

// The reader may still be starting when the rank that started it ends.
bool StreamRing::NobodyComes() {
  if (!parts_.asker_gone->load(std::memory_order_relaxed)) return false;
  if (parts_.asker_reads) return true;
  if (head_->here.load(std::memory_order_acquire) != 0) return false;
  if (gone_ns_ == 0) gone_ns_ = parts_.clock->NowNs();
  return parts_.clock->NowNs() - gone_ns_ > kComeNs;
}

Status StreamRing::Failed(const char* why) const {
  return Status(ErrorId::kSaveFailed, std::string(parts_.what) + " was given up").Why(why);
}

void StreamRing::Give(const shm::StreamPiece& piece) {
  *shm::PieceOf(parts_.memory, given_) = piece;
  head_->given.store(++given_, std::memory_order_release);
  WakeWord(&head_->given);
}

void StreamRing::End(shm::StreamEnd end) {
  head_->pieces = given_;
  head_->end.store(static_cast<uint32_t>(end), std::memory_order_release);
  head_->given.store(given_ + 1, std::memory_order_release);
  WakeWord(&head_->given);
}

}  // namespace tidepool::memserver
