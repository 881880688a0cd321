// Sockets between processes of one user on one machine: abstract Unix sockets, which are no files.
//
// Any thread; no state. Anybody in the same network namespace can see the name of such a socket,
// connect to it, and listen under a name of the same form. Only OwnedByUs tells who the other side
// is; call it before a byte is read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace tidepool::trainer {

// Packets, not blocking. Invalid on error, see errno.
UniqueFd ListenAbstract(const std::string& name);
// Names with this beginning under which a process listens now, in no order.
std::vector<std::string> FindListening(const std::string& prefix);
// Packets, not blocking. Invalid when nobody listens under `name`, or has no room; never waits.
UniqueFd ConnectAbstract(const std::string& name);
// Invalid when nobody waits to be accepted.
UniqueFd AcceptPeer(int listener);

// True when the process at the other end had our effective user id when it connected, or began to
// listen. (SO_PEERCRED)
bool OwnedByUs(int socket);

// Two connected sockets.
struct SocketPair {
  UniqueFd ours, theirs;
};
// Connected, not blocking; `type`: SOCK_STREAM or SOCK_SEQPACKET. Both invalid on error, see errno.
SocketPair MakePair(int type);

// What became of a call on a socket.
enum class PacketResult {
  kDone,
  kWouldBlock,  // nothing there; no room; the kernel holds too many descriptors in flight
  kClosed,      // the peer is gone
  // Not exactly so long, or with more than one descriptor: the peer does not know our protocol.
  kMalformed,
};
// One packet, with a descriptor unless `fd` is -1, which stays the caller's. Never raises SIGPIPE.
PacketResult SendPacket(int socket, std::span<const std::byte> packet, int fd = -1);
// A packet of exactly packet.size() bytes. `fd`: the descriptor that came with it; invalid where
// none did.
PacketResult ReceivePacket(int socket, std::span<std::byte> packet, UniqueFd* fd);

}  // namespace tidepool::trainer
