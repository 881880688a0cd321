// MeetingPacket: what ranks of one machine tell each other before they have a group: all packets
// have this one form.
//
// Any thread; a value type. It comes from another process: Decode checks every number that is used
// as one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/formats/content_hash.h"

namespace tidepool::trainer {

// As memserver takes them: a set of ranks is one word.
inline constexpr uint32_t kRanksOfMachineMax = 64;

struct MeetingPacket {
  enum class Kind : uint32_t {
    kHello = 1,    // to rank 0: who comes
    kRefused = 2,  // from rank 0: `verdict` says why
    kWaiting = 3,  // from rank 0: so many are missing yet
    kPeer = 4,     // from rank 0, with a descriptor: a connection to `rank`
    kAllHere = 5,  // from rank 0: everybody has its connections
    kGroup = 6,    // from `rank`, with a descriptor: its connection in the group `subject`
  };
  enum class Verdict : uint32_t {
    kWelcome = 0,
    kOtherRun = 1,   // another run, attempt or number of ranks
    kOtherSpec = 2,  // the same run, with another specification
    kRankTaken = 3,  // a living process has come as this rank
  };

  Kind kind = Kind::kHello;
  Verdict verdict = Verdict::kWelcome;
  uint32_t rank = 0, world = 0;
  uint64_t missing = 0;  // bit r: rank r has not come
  ContentHash run;       // what the meeting is found by
  ContentHash subject;   // hello: hash of the specification; group: of its name
};

inline constexpr size_t kMeetingPacketBytes = 96;

// The bytes of a packet.
std::array<std::byte, kMeetingPacketBytes> Encode(const MeetingPacket& packet);
// Nothing: no packet of this protocol.
std::optional<MeetingPacket> DecodeMeetingPacket(std::span<const std::byte> bytes);

// What rank 0, of the run and specification in `own`, says to the process that came with `hello`;
// whether its rank is taken is not known here.
MeetingPacket::Verdict JudgeHello(const MeetingPacket& own, const MeetingPacket& hello);

}  // namespace tidepool::trainer
