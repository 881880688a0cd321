// ProtocolRange: the protocol versions that a program speaks, and how two programs of different
// releases agree on one.
//
// Any thread; constants and value types. A client greets with its range; the server takes the
// highest version that both speak, and names it in its answer and in the headers of the rings: the
// session uses that version from then on. A session that comes back to another server agrees anew.
// docs/shm_protocol.md lists what this requires of every later version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tidepool::shm {

struct ProtocolRange {
  uint32_t lowest = 0, highest = 0;  // both inclusive
  // True if the program speaks the version.
  bool Has(uint32_t version) const { return version >= lowest && version <= highest; }
  friend bool operator==(const ProtocolRange&, const ProtocolRange&) = default;
};

// The versions of this program. Alone in its object file (own_protocols.cpp), so that a test can
// link a program in the form of its next release.
extern const ProtocolRange kOwnProtocols;

// The highest version in both ranges, if there is one.
std::optional<uint32_t> Agreed(const ProtocolRange& one, const ProtocolRange& other);
// "version 3" or "versions 3 to 5".
std::string Text(const ProtocolRange& range);

}  // namespace tidepool::shm
