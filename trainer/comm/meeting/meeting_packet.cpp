#include "trainer/comm/meeting/meeting_packet.h"

#include <cstring>
#include <type_traits>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kPacketMagic =
    0x31'54'45'45'4D'50'54'00;  // "\0TPMEET1"; the last byte is the protocol's version

// The packet as sent. Both ends are programs on one machine, so bytes are not swapped.
struct Wire {
  uint64_t magic;
  uint32_t kind, verdict, rank, world;
  uint64_t missing;
  ContentHash run, subject;
};
static_assert(sizeof(Wire) == kMeetingPacketBytes && std::is_trivially_copyable_v<Wire>);

}  // namespace

std::array<std::byte, kMeetingPacketBytes> Encode(const MeetingPacket& packet) {
  const Wire wire{.magic = kPacketMagic,
                  .kind = static_cast<uint32_t>(packet.kind),
                  .verdict = static_cast<uint32_t>(packet.verdict),
                  .rank = packet.rank,
                  .world = packet.world,
                  .missing = packet.missing,
                  .run = packet.run,
                  .subject = packet.subject};

  std::array<std::byte, kMeetingPacketBytes> bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

std::optional<MeetingPacket> DecodeMeetingPacket(std::span<const std::byte> bytes) {
  Wire wire;
  if (bytes.size() != sizeof wire) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof wire);

  if (wire.magic != kPacketMagic) return std::nullopt;
  if (wire.kind < static_cast<uint32_t>(MeetingPacket::Kind::kHello) ||
      wire.kind > static_cast<uint32_t>(MeetingPacket::Kind::kGroup)) {
    return std::nullopt;
  }
  if (wire.verdict > static_cast<uint32_t>(MeetingPacket::Verdict::kRankTaken)) return std::nullopt;
  if (wire.world == 0 || wire.world > kRanksOfMachineMax || wire.rank >= wire.world)
    return std::nullopt;

  return MeetingPacket{.kind = static_cast<MeetingPacket::Kind>(wire.kind),
                       .verdict = static_cast<MeetingPacket::Verdict>(wire.verdict),
                       .rank = wire.rank,
                       .world = wire.world,
                       .missing = wire.missing,
                       .run = wire.run,
                       .subject = wire.subject};
}

MeetingPacket::Verdict JudgeHello(const MeetingPacket& own, const MeetingPacket& hello) {
  using Verdict = MeetingPacket::Verdict;
  if (TP_PLANTED("comm.hello_unchecked")) return Verdict::kWelcome;
  const bool is_joiner = hello.kind == MeetingPacket::Kind::kHello && hello.rank != 0;
  if (!is_joiner || hello.run != own.run || hello.world != own.world) return Verdict::kOtherRun;
  return hello.subject == own.subject ? Verdict::kWelcome : Verdict::kOtherSpec;
}

}  // namespace tidepool::trainer
