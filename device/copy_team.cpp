#include "device/copy_team.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "base/clock.h"
#include "base/log.h"
#include "device/copy_bytes.h"

namespace tidepool::device {
namespace {

constexpr uint64_t kPieceMask = 0xFFFF'FFFF;

}  // namespace

CopyTeam::CopyTeam(uint32_t helpers, int64_t spin_ns) : spin_ns_(spin_ns) {
  try {
    for (uint32_t i = 0; i < helpers; ++i) {
      threads_.emplace_back(&CopyTeam::Main, this);
      pthread_setname_np(threads_.back().native_handle(), "tp-copy");
    }
  } catch (const std::system_error& error) {
    LogWarn("fewer threads help with copies than asked for", {{"threads", threads_.size()}, {"why", error.what()}});
  }
}

CopyTeam::~CopyTeam() {
  stop_.store(true, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyTeam::Copy(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes) {
  const bool alone = threads_.empty() || !used() || bytes < 2 * kPieceBytes;
  if (alone || busy_.exchange(true, std::memory_order_acquire)) return CopyBytes(dst, src, bytes, copy_bytes);
  dst_ = dst;
  src_ = src;
  bytes_ = bytes;
  copy_bytes_ = copy_bytes;
  const auto pieces = static_cast<uint32_t>(DivideUp(bytes, kPieceBytes));
  pieces_.store(pieces, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(generation << 32, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_all();  // a system call only when one sleeps
  while (DoOne()) {
  }
  while (done_.load(std::memory_order_acquire) != pieces) __builtin_ia32_pause();  // at most one piece of each helper
  busy_.store(false, std::memory_order_release);
}

bool CopyTeam::DoOne() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    // The number of pieces may be that of a later generation: then the ticket has changed too, and the exchange fails.
    if ((ticket & kPieceMask) >= pieces_.load(std::memory_order_relaxed)) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire, std::memory_order_acquire));
  const uint64_t begin = (ticket & kPieceMask) * kPieceBytes;
  CopyBytes(dst_ + begin, src_ + begin, std::min(kPieceBytes, bytes_ - begin), copy_bytes_);
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void CopyTeam::Main() {
  const SteadyClock clock;
  int64_t idle_since_ns = clock.NowNs();
  for (;;) {
    // The bell first: a task or a stop that comes after this look has changed it, so nobody sleeps on it.
    const uint32_t seen = bell_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    if (DoOne()) {
      idle_since_ns = clock.NowNs();
    } else if (clock.NowNs() - idle_since_ns < spin_ns_) {
      __builtin_ia32_pause();
    } else {
      bell_.wait(seen, std::memory_order_acquire);
      idle_since_ns = clock.NowNs();
    }
  }
}

}  // namespace tidepool::device
