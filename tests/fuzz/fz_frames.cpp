// Fuzz target: what a trainer's packets may hold: frames, job specifications, and the packets
// themselves with their descriptors (attacks A1 and A9 of the reliability notes).
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "base/check.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/spec/decode.h"
#include "shm/spec/encode.h"
#include "shm/spec/job_spec.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/validate.h"
#include "tests/fuzz/descriptor_watch.h"
#include "tests/fuzz/fuzzed_spec.h"

namespace tidepool::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

// What was understood says the same when it is written and read again.
void CheckFrame(std::span<const std::byte> bytes) {
  auto frame = shm::DecodeFrame(bytes);
  if (!frame.ok()) return;
  TP_CHECK(shm::FdsOf(*frame) <= shm::kPacketFdsMax && shm::NameOf(*frame) != nullptr,
           "every frame has a name and descriptors that fit");
  const Bytes once = shm::EncodeFrame(*frame);
  auto again = shm::DecodeFrame(once);
  TP_CHECK(again.ok() && shm::EncodeFrame(*again) == once, "writing and reading is the identity");
}

void CheckSpec(std::span<const std::byte> bytes) {
  auto spec = shm::Decode(bytes);
  if (!spec.ok()) return;
  TP_CHECK(shm::Validate(*spec).ok(), "a specification that was read is sound");
  const Bytes written = shm::Encode(*spec);
  TP_CHECK(std::equal(written.begin(), written.end(), bytes.begin(), bytes.end()),
           "a specification has one encoding");
  const shm::StateBytes states = shm::StateBytesOf(*spec);
  TP_CHECK(states.total() >= spec->TotalElements() * 6 && states.total() < uint64_t{1} << 62,
           "sizes do not overflow");
  TP_CHECK(shm::ExtentCount(*spec) >= 1 + 2 * spec->chunks.size(),
           "master and gradient have an extent");
}

Bytes HeaderOf(FuzzInput* input, size_t payload_bytes) {
  const std::array<uint16_t, 8> words{0x5054,
                                      0x4644,
                                      static_cast<uint16_t>(1 + input->Choice(13)),
                                      0,
                                      static_cast<uint16_t>(payload_bytes),
                                      static_cast<uint16_t>(payload_bytes >> 16)};
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

void FuzzPayload(FuzzInput* input) {
  const uint8_t type = input->Byte();
  FuzzInput type_input(&type, 1);
  const auto payload = input->Rest();
  Bytes packet = HeaderOf(&type_input, payload.size());
  packet.insert(packet.end(), payload.begin(), payload.end());
  CheckFrame(packet);
}

void FuzzSpec(FuzzInput* input) {
  Bytes bytes = shm::Encode(FuzzedSpec(input));
  Disturb(input, input->Choice(4), bytes);
  if (input->OneIn(8)) bytes.resize(input->Number<uint32_t>() % (bytes.size() + 1));
  CheckSpec(bytes);
}

// Sends without any of the checks of SendPacket.
bool SendRaw(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * 64)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

struct SentPacket {
  size_t bytes = 0, fds = 0;
};

SentPacket SendOne(FuzzInput* input, int socket) {
  static const Bytes large(shm::kPacketBytesMax + 4096, std::byte{0x5a});
  const size_t size = input->OneIn(8) ? shm::kPacketBytesMax - 2 + input->Choice(5) : input->Byte();
  const std::vector<int> fds(input->OneIn(4) ? input->Choice(64) : input->Choice(6), STDERR_FILENO);
  if (!SendRaw(socket, std::span(large).first(size), fds)) return {0, SIZE_MAX};
  return {size, fds.size()};
}

void FuzzPackets(FuzzInput* input) {
  std::array<int, 2> ends{};
  TP_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0,
           "a pair of sockets");
  const UniqueFd peer(ends[0]), own(ends[1]);
  for (uint32_t packets = 1 + input->Choice(4); packets > 0; --packets) {
    const SentPacket sent = SendOne(input, peer.get());
    const uint32_t fds_max = input->Choice(shm::kPacketFdsMax + 1);
    shm::Packet packet;
    const auto result = shm::ReceivePacket(own.get(), fds_max, &packet);
    if (sent.fds == SIZE_MAX) {
      TP_CHECK(result == shm::SocketResult::kWouldBlock, "nothing was sent");
    } else if (sent.bytes > shm::kPacketBytesMax || sent.fds > fds_max) {
      TP_CHECK(result == shm::SocketResult::kMalformed && packet.fds.empty(),
               "too much is refused whole");
    } else if (sent.bytes == 0) {
      TP_CHECK(result == shm::SocketResult::kClosed, "an empty packet reads as the end");
    } else {
      TP_CHECK(result == shm::SocketResult::kDone && packet.bytes.size() == sent.bytes &&
                   packet.fds.size() == sent.fds,
               "the rest arrives");
    }
  }
}

void RunOne(FuzzInput* input) {
  switch (input->Choice(5)) {
    case 0: return CheckFrame(input->Rest());
    case 1: return FuzzPayload(input);
    case 2: return CheckSpec(input->Rest());
    case 3: return FuzzSpec(input);
    default: return FuzzPackets(input);
  }
}

}  // namespace
}  // namespace tidepool::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::fuzz::FuzzInput input(data, size);
  const tidepool::fuzz::DescriptorWatch watch;
  tidepool::fuzz::RunOne(&input);
  watch.CheckSame();
  return 0;
}
