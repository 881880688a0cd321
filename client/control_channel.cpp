#include "client/control_channel.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"

namespace tidepool::client {

namespace {

constexpr int64_t kRetryNs = 20 * kNsPerMs;

Status TimedOut(const char* what, int64_t timeout_ns) {
  return Status(ErrorId::kWaitTimeout, std::string(what) + " for " +
                                           FormatDuration(static_cast<double>(timeout_ns) /
                                                          static_cast<double>(kNsPerSecond)));
}

}  // namespace

Result<ControlChannel> ControlChannel::Open(Clock* clock, const std::string& socket_dir,
                                            int64_t timeout_ns) {
  TP_RETURN_IF_ERROR(shm::CheckSocketDir(socket_dir));
  const std::string path = shm::DataSocketPath(socket_dir);
  const int64_t end = clock->NowNs() + timeout_ns;

  for (;;) {
    auto socket = shm::ConnectSocket(clock, path, std::max<int64_t>(0, end - clock->NowNs()));
    if (socket.ok()) return ControlChannel(clock, std::move(socket).value(), path);
    if (socket.status().id() != ErrorId::kNoServer || clock->NowNs() + kRetryNs > end)
      return socket.status();
    clock->SleepNs(kRetryNs);
  }
}

Status ControlChannel::Gone() const {
  return Status(ErrorId::kServerGone, "memserver closed the connection or has ended").Where(path_);
}

Status ControlChannel::Send(const shm::Frame& frame, int64_t timeout_ns, std::span<const int> fds) {
  const auto bytes = shm::EncodeFrame(frame);
  const int64_t end = clock_->NowNs() + timeout_ns;
  for (;;) {
    switch (shm::SendPacket(socket_.get(), bytes, fds)) {
      case shm::SocketResult::kDone: return Status();
      case shm::SocketResult::kWouldBlock: break;
      default: return Gone();
    }

    const int64_t left = end - clock_->NowNs();
    if (left <= 0) return TimedOut("memserver took no message", timeout_ns);
    clock_->SleepOnDescriptor(socket_.get(), POLLOUT, left);
  }
}

Result<std::optional<ReceivedFrame>> ControlChannel::Poll() {
  shm::Packet packet;
  switch (shm::ReceivePacket(socket_.get(), shm::kPacketFdsMax, &packet)) {
    case shm::SocketResult::kWouldBlock: return std::optional<ReceivedFrame>();
    case shm::SocketResult::kClosed: return Gone();
    case shm::SocketResult::kMalformed:
      return Status(ErrorId::kHandshakeBad, "a packet of the server is malformed").Where(path_);
    case shm::SocketResult::kDone: break;
  }

  TP_ASSIGN_OR_RETURN(shm::Frame frame, shm::DecodeFrame(packet.bytes));
  if (packet.fds.size() != shm::FdsOf(frame)) {
    return Status(ErrorId::kHandshakeBad, std::string("a ") + shm::NameOf(frame) +
                                              " frame came with " +
                                              std::to_string(packet.fds.size()) + " descriptors")
        .Where(path_);
  }
  return std::optional(ReceivedFrame{std::move(frame), std::move(packet.fds)});
}

Result<ReceivedFrame> ControlChannel::Await(int64_t timeout_ns) {
  const int64_t end = clock_->NowNs() + timeout_ns;
  for (;;) {
    TP_ASSIGN_OR_RETURN(std::optional<ReceivedFrame> received, Poll());
    if (received) return std::move(*received);
    const int64_t left = end - clock_->NowNs();
    if (left <= 0) return TimedOut("memserver did not answer", timeout_ns);
    clock_->SleepOnDescriptor(socket_.get(), POLLIN, left);
  }
}

}  // namespace tidepool::client
