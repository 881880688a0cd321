#include "base/formats/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace tidepool {

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before) {
  constexpr size_t kCallMax = size_t{1} << 30;  // the library counts in int
  uint32_t crc = ~before;
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kCallMax);
    // The library's parameter is not const, but it does not change the bytes.
    auto* const begin =
        const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    crc = crc32_iscsi(begin, static_cast<int>(count), crc);
    bytes = bytes.subspan(count);
  }
  return ~crc;
}

}  // namespace tidepool
