#include "memserver/keeper/keeper_messages.h"

#include <poll.h>

#include <cstring>
#include <span>

namespace tidepool::memserver {

namespace {

bool IsKnown(KeeperOp op) {
  return (op >= KeeperOp::kHold && op <= KeeperOp::kEnd) ||
         (op >= KeeperOp::kHello && op <= KeeperOp::kGivenAll);
}

}  // namespace

shm::SocketResult SendMessage(int socket, const KeeperMessage& message, int fd,
                              int64_t timeout_ns) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  const std::span<const int> fds(&fd, fd >= 0 ? 1 : 0);
  const auto result = shm::SendPacket(socket, bytes, fds);
  if (result != shm::SocketResult::kWouldBlock || !shm::WaitForSocket(socket, POLLOUT, timeout_ns))
    return result;
  return shm::SendPacket(socket, bytes, fds);
}

std::optional<KeeperMessage> MessageOf(const shm::Packet& packet) {
  KeeperMessage message;
  if (packet.bytes.size() != sizeof message) return std::nullopt;
  std::memcpy(&message, packet.bytes.data(), sizeof message);
  const bool brings_memory = message.op == KeeperOp::kHold || message.op == KeeperOp::kGiven;
  if (!IsKnown(message.op) || message.slot >= kKeptSlotsMax ||
      packet.fds.size() != (brings_memory ? 1 : 0))
    return std::nullopt;
  return message;
}

}  // namespace tidepool::memserver
