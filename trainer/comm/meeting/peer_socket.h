// Sockets between processes of one user on one machine: abstract Unix sockets, which are not files.
//
// Any thread; no state. Every process in the network namespace can see the name of such a socket,
// connect to it, and listen under a name of the same form. Only OwnedByUs identifies the peer's
// user; call it before reading or writing a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace tidepool::trainer {

// Listens for packets, non-blocking. Invalid on error, see errno.
UniqueFd ListenAbstract(const std::string& name);
// Names with this prefix under which a process listens now, unordered.
std::vector<std::string> FindListening(const std::string& prefix);
// Connects, non-blocking, packets. Invalid if nobody listens under `name` or its queue is full.
UniqueFd ConnectAbstract(const std::string& name);
// Invalid if no peer is waiting to be accepted.
UniqueFd AcceptPeer(int listener);

// True when the process at the other end had our effective user id when it connected, or began to
// listen. (SO_PEERCRED)
bool OwnedByUs(int socket);

// Two connected sockets.
struct SocketPair {
  UniqueFd ours, theirs;
};
// Connected, non-blocking; `type`: SOCK_STREAM or SOCK_SEQPACKET. Both invalid on error, see errno.
SocketPair MakePair(int type);

// Result of a socket call.
enum class PacketResult {
  kDone,
  kWouldBlock,  // no packet; no room; or the kernel holds too many descriptors in flight
  kClosed,      // the peer is gone
  // Another length, or more than one descriptor: the peer does not speak our protocol.
  kMalformed,
};
// Sends one packet, with a descriptor unless `fd` is -1; the caller keeps it. Never raises SIGPIPE.
PacketResult SendPacket(int socket, std::span<const std::byte> packet, int fd = -1);
// Receives a packet of exactly packet.size() bytes. `fd`: the descriptor that came with it; invalid
// if none did.
PacketResult ReceivePacket(int socket, std::span<std::byte> packet, UniqueFd* fd);

}  // namespace tidepool::trainer
