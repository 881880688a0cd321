// Packets with file descriptors over a SOCK_SEQPACKET Unix socket: the control channel between a trainer and memserver.
//
// One thread per socket. Nothing here waits unless it says so. Rules that the functions keep (faults seen in other servers):
//  1. the control buffer has room for exactly the descriptors that are allowed: CMSG_SPACE rounds up and would let in one more;
//  2. every descriptor that arrives is owned at once, and closed when anything about the packet is wrong;
//  3. a truncated packet or control message is an error of the peer, never a shorter packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::shm {

inline constexpr size_t kPacketBytesMax = 64 * 1024;  // below the default socket buffer of Linux (208 KiB)
inline constexpr uint32_t kPacketFdsMax = 4;

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

enum class SocketResult {
  kDone,
  kWouldBlock,  // nothing there, or no room; poll and try again
  kClosed,      // the peer is gone
  kMalformed,   // truncated, too large or with descriptors that are not allowed: close the socket
};

// Sends one packet. fds stay the caller's. Never raises SIGPIPE.
SocketResult SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds = {});
// Receives one packet with at most `fds_max` (<= kPacketFdsMax) descriptors.
SocketResult ReceivePacket(int socket, uint32_t fds_max, Packet* packet);

// Waits until `events` (POLLIN, POLLOUT) or a hang-up; false after `timeout_ns`.
bool WaitForSocket(int socket, short events, int64_t timeout_ns);

// Connects to a server's socket; a full backlog is waited for. Errors: kNoServer, kSocketFailed.
Result<UniqueFd> ConnectSocket(const std::string& path, int64_t timeout_ns);
// A listening socket at `path` (mode 0600; the path must be free). Errors: kSocketFailed.
Result<UniqueFd> ListenSocket(const std::string& path);

}  // namespace tidepool::shm
