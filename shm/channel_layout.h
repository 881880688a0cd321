// The layout of the two segments of one session, and which side writes which page.
//
//   submission segment (memfd)                 completion segment (memfd)
//   client writes, server reads                server writes, client maps read-only
//   +0     SubmissionHeader                    +0     CompletionHeader
//   +4096  RingSlot[kRingEntries]  requests    +4096  RingSlot[kRingEntries]  completions
//
// One writer per page. The server trusts nothing in the submission segment: it keeps its own
// positions and checks the client's. A slot holds the item of position p when sequence == p + 1;
// positions count up for ever and the slot index is p % kRingEntries. The client keeps at most
// kRingEntries requests whose completions it has not consumed; more ends the session.
#pragma once

#include <atomic>
#include <cstdint>

#include "shm/messages.h"

namespace tidepool::shm {

inline constexpr uint64_t kRingEntries = 1024;            // power of two; 64 KiB per ring
inline constexpr uint32_t kSubmissionMagic = 0x53445054;  // "TPDS"
inline constexpr uint32_t kCompletionMagic = 0x43445054;  // "TPDC"

struct alignas(64) RingSlot {
  std::atomic<uint64_t> sequence;              // position + 1, stored with release after the words
  std::atomic<uint64_t> words[kPayloadWords];  // a Request or a Completion
};

struct SubmissionHeader {
  uint32_t magic;
  uint32_t abi;
  // Client's position in the completion ring.
  alignas(64) std::atomic<uint64_t> completions_consumed;
  // 1 while the client may sleep on wake_word; a hint only.
  alignas(64) std::atomic<uint32_t> client_waiting;
};

struct CompletionHeader {
  uint32_t magic;
  uint32_t abi;
  uint32_t session;
  uint32_t reserved;
  // Server's position in the submission ring.
  alignas(64) std::atomic<uint64_t> submissions_consumed;
  // Not 0 while the server may sleep; the number of this sleep.
  alignas(64) std::atomic<uint32_t> server_sleeping;
  // futex: counts published batches of completions.
  alignas(64) std::atomic<uint32_t> wake_word;
  // ErrorId that ended the session, 0 while it lives.
  std::atomic<uint32_t> ended;
};

// Each sleep has a number, so that a client writes the doorbell eventfd once per sleep, however
// many requests it submits meanwhile. Servers with only one number for all sleeps write this one;
// then each request rings.
inline constexpr uint32_t kUnnumberedSleep = 1;

inline constexpr uint64_t kRingOffset = 4096;
inline constexpr uint64_t kChannelBytes = kRingOffset + kRingEntries * sizeof(RingSlot);

static_assert(sizeof(RingSlot) == 64);
static_assert(sizeof(SubmissionHeader) <= kRingOffset && sizeof(CompletionHeader) <= kRingOffset);
static_assert((kRingEntries & (kRingEntries - 1)) == 0);
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

}  // namespace tidepool::shm
