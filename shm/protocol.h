// ProtocolRange: the versions of the protocol that a program speaks, and how two programs of
// different releases find one.
//
// Any thread; constants and value types. A client greets with its range; the server takes the
// highest version that both speak, names it in its answer and in the headers of the rings, and from
// then on the session is of that version. A session that comes back to another server agrees anew.
// What this takes of every version to come is in docs/shm_protocol.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tidepool::shm {

struct ProtocolRange {
  uint32_t lowest = 0, highest = 0;  // both spoken
  // True where the program speaks the version.
  bool Has(uint32_t version) const { return version >= lowest && version <= highest; }
  friend bool operator==(const ProtocolRange&, const ProtocolRange&) = default;
};

// What this program speaks. Alone in its object (own_protocols.cpp), so that a test can link a
// program as its next release will be.
extern const ProtocolRange kOwnProtocols;

// The highest version in both ranges, if there is one.
std::optional<uint32_t> Agreed(const ProtocolRange& one, const ProtocolRange& other);
// "version 3" or "versions 3 to 5".
std::string Text(const ProtocolRange& range);

}  // namespace tidepool::shm
