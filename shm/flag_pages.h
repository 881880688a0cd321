// FlagPages: the words that order the copies of a session whose rCache the rank brought against the
// trainer's streams, without any CPU.
//
//   +0      ready[512]   written by the trainer: its streams, or its CPU
//   +4096   done[512]    written by the server: its stream, or its CPU
//
// The words of request number n (in the first rings: its counter; in later ones: Resume's
// flags_base + its counter) are in slot n % 512. `ready` is n when the copy may begin; `done` is n
// when it has been made: the server's stream writes it behind the copy of a fetch; for a gradient
// it is written when kept memory has it, so that such a gradient is never asked for again. An
// answer with an error writes n, too. kFetch and kSubmitGradient have flags, except those sent
// again (kResubmitted), for which the client itself waits and writes. Any process may write any
// word at any time: a word that is ahead of the truth harms only its writer's session, which copies
// too early. Poison (INT64_MAX) in `done` means that the session is over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/messages.h"
#include "shm/shared_load.h"

namespace tidepool::shm {

inline constexpr uint32_t kFlagSlots = 512;
inline constexpr uint64_t kFlagPageBytes = 4096;
inline constexpr uint64_t kFlagBytes = 2 * kFlagPageBytes;
inline constexpr uint64_t kPoisonedFlag = INT64_MAX;  // as device::kFlagPoison

static_assert(kFlagSlots * sizeof(std::atomic<uint64_t>) == kFlagPageBytes);

// True for requests that use flags.
inline bool HasFlags(const Request& request) {
  const bool copies = request.op == static_cast<uint32_t>(Op::kFetch) ||
                      request.op == static_cast<uint32_t>(Op::kSubmitGradient);
  return copies && (request.flags & kResubmitted) == 0;
}

// Either side; a view of memory that another object owns. Null: a session without flags.
class FlagPages {
 public:
  FlagPages() = default;
  explicit FlagPages(std::byte* pages) : words_(reinterpret_cast<std::atomic<uint64_t>*>(pages)) {}

  // True for a session without flags.
  bool is_null() const { return words_ == nullptr; }
  std::atomic<uint64_t>* ready(uint64_t n) const { return words_ + n % kFlagSlots; }
  std::atomic<uint64_t>* done(uint64_t n) const { return words_ + kFlagSlots + n % kFlagSlots; }
  // One read; compares cyclically. (Poison counts as reached: the waiting side then asks for the
  // reason.)
  bool IsReady(uint64_t n) const {
    return Reached(SharedLoad(*ready(n), std::memory_order_acquire), n);
  }
  bool IsDone(uint64_t n) const {
    return Reached(SharedLoad(*done(n), std::memory_order_acquire), n);
  }
  // Ends every wait on `done`. Only the server calls it.
  void PoisonDone() const {
    for (uint32_t slot = 0; slot < kFlagSlots; ++slot)
      done(slot)->store(kPoisonedFlag, std::memory_order_release);
  }

 private:
  static bool Reached(uint64_t word, uint64_t n) { return static_cast<int64_t>(word - n) >= 0; }
  std::atomic<uint64_t>* words_ = nullptr;
};

}  // namespace tidepool::shm
