// KeeperMessage: the protocol between memserver and its keeper: packets of 16 bytes over a
// SOCK_SEQPACKET Unix socket.
//
// One thread per socket. The kernel passes descriptors along (SCM_RIGHTS); messages in flight when
// one side dies still arrive.
//
//     memserver              keeper
//       | connect ------------> |
//       | <------------- kHello |   slot: kKeeperProtocol, value: the keeper's pid
//       | kTake --------------> |
//       | <------ kGiven (+ fd) |   one per slot that is held; value: its bytes
//       | <---------- kGivenAll |   value: how many were given
//       | kHold (+ fd) -------> |   replaces what the slot held; value: its bytes
//       | kForget ------------> |   every slot becomes empty
//       | kPart or kEnd ------> |   a farewell; a connection that closes without one is a crash
//
// kPart: hold the memory for `value` milliseconds and do not start memserver again. kEnd: the
// memory is no longer needed.
#pragma once

#include <cstdint>
#include <optional>

#include "base/unique_fd.h"
#include "shm/fd_socket.h"

namespace tidepool::memserver {

// The meaning of a message.
enum class KeeperOp : uint32_t {
  kHold = 1,
  kTake,
  kForget,
  kPart,
  kEnd,
  kHello = 16,
  kGiven,
  kGivenAll
};

struct KeeperMessage {
  KeeperOp op = KeeperOp::kTake;
  // 0: the index of kept memory; 1 and up: pieces of the pool; kStateSlotsFirst and up: states on
  // GPUs.
  uint32_t slot = 0;
  uint64_t value = 0;
};
static_assert(sizeof(KeeperMessage) == 16);

inline constexpr uint32_t kKeeperProtocol = 1;
// This many answers fit into a socket whose reader has not started to read; with pieces of 64 GiB
// they name 8 TiB.
inline constexpr uint32_t kKeptSlotsMax = 128;
// GPU memory (decision 026), whose descriptors are not memfds; one per share of a job. A released
// slot holds an empty memfd, because keepers of every release can replace the content of a slot.
inline constexpr uint32_t kStateSlotsFirst = 96;

// One kept memfd. The holder of this value owns its descriptor.
struct HeldMemory {
  uint32_t slot = 0;
  UniqueFd fd;
  uint64_t bytes = 0;
};

// One memfd to be kept. The caller keeps the descriptor.
struct MemoryToHold {
  uint32_t slot = 0;
  int fd = -1;
  uint64_t bytes = 0;
};

// Sends one message, with `fd` if it is >= 0; waits up to `timeout_ns` for room, then returns
// kWouldBlock.
shm::SocketResult SendMessage(int socket, const KeeperMessage& message, int fd, int64_t timeout_ns);
// Parses a packet; none if size, operation, slot or number of descriptors is not as above.
std::optional<KeeperMessage> MessageOf(const shm::Packet& packet);

}  // namespace tidepool::memserver
