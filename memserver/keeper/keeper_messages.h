// KeeperMessage: all that memserver and its keeper say to each other: packets of 16 bytes over a
// SOCK_SEQPACKET Unix socket.
//
// One thread a socket. The kernel passes descriptors along (SCM_RIGHTS); what is in flight when one
// side dies still arrives.
//
//     memserver              keeper
//       | connect ------------> |
//       | <------------- kHello |   slot: kKeeperProtocol, value: the keeper's pid
//       | kTake --------------> |
//       | <------ kGiven (+ fd) |   one a slot that is held; value: its bytes
//       | <---------- kGivenAll |   value: how many were given
//       | kHold (+ fd) -------> |   replaces what the slot held; value: its bytes
//       | kForget ------------> |   every slot becomes empty
//       | kPart or kEnd ------> |   a farewell; a connection that closes without one is a crash
//
// kPart: hold the memory for `value` milliseconds and do not start memserver again. kEnd: the
// memory is not needed any more.
#pragma once

#include <cstdint>
#include <optional>

#include "base/unique_fd.h"
#include "shm/fd_socket.h"

namespace tidepool::memserver {

// What a message asks or tells.
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
// So many answers fit into a socket whose reader has not started to read; with pieces of 64 GiB
// they name 8 TiB.
inline constexpr uint32_t kKeptSlotsMax = 128;
// Memory of GPUs (decision 026), whose descriptors are no memfds, one a share of a job. A slot that
// was let go of holds an empty memfd, for keepers of every release know how to replace what a slot
// holds.
inline constexpr uint32_t kStateSlotsFirst = 96;

// One kept memfd and who owns its descriptor: the holder of this value.
struct HeldMemory {
  uint32_t slot = 0;
  UniqueFd fd;
  uint64_t bytes = 0;
};

// One memfd to be kept. The descriptor stays the caller's.
struct MemoryToHold {
  uint32_t slot = 0;
  int fd = -1;
  uint64_t bytes = 0;
};

// Sends one message, with `fd` when it is >= 0; waits up to `timeout_ns` for room, then says
// kWouldBlock.
shm::SocketResult SendMessage(int socket, const KeeperMessage& message, int fd, int64_t timeout_ns);
// The message of a packet; none where size, operation, slot or number of descriptors is not as
// above.
std::optional<KeeperMessage> MessageOf(const shm::Packet& packet);

}  // namespace tidepool::memserver
