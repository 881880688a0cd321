#include "base/crc32c.h"

#include <boost/crc.hpp>

namespace tidepool {

uint32_t Crc32c(std::span<const std::byte> bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

}  // namespace tidepool
