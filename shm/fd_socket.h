// Packets with file descriptors over a SOCK_SEQPACKET Unix socket: the control channel between a
// trainer and memserver.
//
// One thread per socket. Nothing here waits unless its comment says so. The functions keep these
// rules (each from a fault seen in another server):
//  1. the control buffer has room for exactly the allowed descriptors: CMSG_SPACE rounds up and
//     would admit one more;
//  2. every arriving descriptor is owned at once, and closed if anything about the packet is wrong;
//  3. if no descriptor is allowed, no control buffer is offered: the kernel then installs none, and
//     this process closes none. The last close of a descriptor can take a peer's file system any
//     length of time, so a thread that others wait for looks first (PeekPacket);
//  4. a truncated packet or control message is an error of the peer, never a shorter packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::shm {

// Below the default socket buffer of Linux (208 KiB)
inline constexpr size_t kPacketBytesMax = 64 * 1024;
inline constexpr uint32_t kPacketFdsMax = 4;

// One packet and its descriptors.
struct Packet {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

// The result of a socket call.
enum class SocketResult {
  kDone,
  // No packet, no room, or the system has no memory for it now; poll and try again.
  kWouldBlock,
  kClosed,     // the peer is gone
  kMalformed,  // truncated, too large, or with descriptors that are not allowed: close the socket
};

// What can be known about the next packet without taking it: none of its descriptors is installed
// in this process.
struct PacketHead {
  std::array<std::byte, 16> bytes{};
  size_t count = 0;          // valid `bytes`; fewer in a shorter packet
  bool descriptors = false;  // some come with it
  // The valid bytes.
  std::span<const std::byte> read() const { return std::span(bytes).first(count); }
};

// True if errno of a socket call says that the system lacks memory for it now, which says nothing
// about the peer.
bool IsShortage(int error);

// Sends one packet. The fds stay the caller's. Never raises SIGPIPE. Retries a few times if the
// system lacks memory.
SocketResult SendPacket(int socket, std::span<const std::byte> bytes,
                        std::span<const int> fds = {});
// Reads the beginning of the next packet without taking it.
SocketResult PeekPacket(int socket, PacketHead* head);
// Receives one packet with at most `fds_max` (<= kPacketFdsMax) descriptors.
SocketResult ReceivePacket(int socket, uint32_t fds_max, Packet* packet);

// Waits for `events` (POLLIN, POLLOUT) or a hang-up; false after `timeout_ns`.
bool WaitForSocket(int socket, short events, int64_t timeout_ns);

// Connects to a server's socket; waits while the backlog is full or the system lacks memory.
// Errors: kNoServer (nobody listens, or takes connections), kSocketFailed, kHostMemoryShort (a
// server may be listening).
Result<UniqueFd> ConnectSocket(Clock* clock, const std::string& path, int64_t timeout_ns);
// A listening socket at `path` (mode 0600; the path must be unused). Errors: kSocketFailed.
Result<UniqueFd> ListenSocket(const std::string& path);

}  // namespace tidepool::shm
