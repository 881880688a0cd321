#include "shm/protocol.h"

#include <algorithm>

namespace tidepool::shm {

std::optional<uint32_t> Agreed(const ProtocolRange& one, const ProtocolRange& other) {
  const uint32_t highest = std::min(one.highest, other.highest);
  if (highest < std::max(one.lowest, other.lowest)) return std::nullopt;
  return highest;
}

std::string Text(const ProtocolRange& range) {
  if (range.lowest == range.highest) return "version " + std::to_string(range.highest);
  return "versions " + std::to_string(range.lowest) + " to " + std::to_string(range.highest);
}

}  // namespace tidepool::shm
