#include "device/host/copy_team.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "device/host/copy_bytes.h"

namespace tidepool::device {
namespace {

constexpr uint64_t kNextMask = 0xFFFF'FFFF;
constexpr int kPiecesShift = 32;

}  // namespace

CopyTeam::CopyTeam(const Clock* clock, uint32_t helpers, int64_t spin_ns, const Form& form)
    : clock_(clock), form_(form), spin_ns_(spin_ns) {
  try {
    for (uint32_t i = 0; i < helpers; ++i) {
      threads_.emplace_back(&CopyTeam::Main, this);
      pthread_setname_np(threads_.back().native_handle(), "tp-copy");
    }
  } catch (const std::system_error& error) {
    LogWarn("fewer threads help with copies than asked for",
            {{"threads", threads_.size()}, {"why", error.what()}});
  }
}

CopyTeam::~CopyTeam() {
  stop_.store(true, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyTeam::Copy(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes) {
  const bool alone = threads_.empty() || !used() || bytes < 2 * form_.piece_bytes;
  if (alone || busy_.exchange(true, std::memory_order_acquire))
    return CopyBytes(dst, src, bytes, copy_bytes);
  const uint32_t pieces = Open(dst, src, bytes, copy_bytes);
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_all();  // a system call only if one sleeps

  while (DoOne()) {
  }
  // Waits for at most one piece of each helper.
  for (uint32_t done = 0; (done = done_.load(std::memory_order_acquire)) != pieces;
       __builtin_ia32_pause()) {
    TP_CHECK(done < pieces, "a piece is claimed once");
  }
  busy_.store(false, std::memory_order_release);
}

uint32_t CopyTeam::Open(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes) {
  const uint64_t piece_bytes =
      std::max(form_.piece_bytes, RoundUp(DivideUp(bytes, form_.pieces_max), 64));
  const uint64_t pieces = DivideUp(bytes, piece_bytes);
  if (TP_PLANTED("device.copy_counted_early")) {
    const uint64_t next = ticket_.load(std::memory_order_relaxed) & kNextMask;
    ticket_.store(pieces << kPiecesShift | next, std::memory_order_release);
    Pause();
  }

  // The ticket is used up: a thread that has read it, or an older one, claims nothing before the
  // last store.
  dst_ = dst;
  src_ = src;
  Pause();
  bytes_ = bytes;
  copy_bytes_ = copy_bytes;
  piece_bytes_ = piece_bytes;
  done_.store(0, std::memory_order_relaxed);
  Pause();
  ticket_.store(pieces << kPiecesShift, std::memory_order_release);
  return static_cast<uint32_t>(pieces);
}

bool CopyTeam::DoOne() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    if ((ticket & kNextMask) >= ticket >> kPiecesShift) return false;
    Pause();
  } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire,
                                          std::memory_order_acquire));
  Pause();

  const uint64_t begin = (ticket & kNextMask) * piece_bytes_;
  CopyBytes(dst_ + begin, src_ + begin, std::min(piece_bytes_, bytes_ - begin), copy_bytes_);
  Pause();
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void CopyTeam::Main() {
  int64_t idle_since_ns = clock_->NowNs();
  for (;;) {
    // Reads the bell first: a task or a stop that comes after this check has changed it, so nobody
    // sleeps on it.
    const uint32_t seen = bell_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    if (DoOne()) {
      idle_since_ns = clock_->NowNs();
    } else if (clock_->NowNs() - idle_since_ns < spin_ns_) {
      __builtin_ia32_pause();
    } else {
      bell_.wait(seen, std::memory_order_acquire);
      idle_since_ns = clock_->NowNs();
    }
  }
}

}  // namespace tidepool::device
