// MeetingPacket: the one packet format that ranks of one machine exchange before they have a group.
//
// Any thread; a value type. Packets come from other processes: Decode checks each number that is
// used as one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/formats/content_hash.h"

namespace tidepool::trainer {

// The limit of memserver, too: a set of ranks is one 64-bit word.
inline constexpr uint32_t kRanksOfMachineMax = 64;

struct MeetingPacket {
  enum class Kind : uint32_t {
    kHello = 1,    // to rank 0: the sender's identity
    kRefused = 2,  // from rank 0: `verdict` has the reason
    kWaiting = 3,  // from rank 0: `missing` are still missing
    kPeer = 4,     // from rank 0, with a descriptor: a connection to `rank`
    kAllHere = 5,  // from rank 0: all have their connections
    kGroup = 6,    // from `rank`, with a descriptor: its connection in group `subject`
  };
  enum class Verdict : uint32_t {
    kWelcome = 0,
    kOtherRun = 1,   // another run, attempt or number of ranks
    kOtherSpec = 2,  // the same run, with another specification
    kRankTaken = 3,  // a living process has come as this rank already
  };

  Kind kind = Kind::kHello;
  Verdict verdict = Verdict::kWelcome;
  uint32_t rank = 0, world = 0;
  uint64_t missing = 0;  // bit r: rank r has not come
  ContentHash run;       // identifies the meeting
  ContentHash subject;   // hello: hash of the specification; group: of its name
};

inline constexpr size_t kMeetingPacketBytes = 96;

// The bytes of a packet.
std::array<std::byte, kMeetingPacketBytes> Encode(const MeetingPacket& packet);
// nullopt: not a packet of this protocol.
std::optional<MeetingPacket> DecodeMeetingPacket(std::span<const std::byte> bytes);

// Rank 0's answer, with run and specification from `own`, to a process that sent `hello`. Does not
// know whether the rank is taken.
MeetingPacket::Verdict JudgeHello(const MeetingPacket& own, const MeetingPacket& hello);

}  // namespace tidepool::trainer
