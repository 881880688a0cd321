// Crc32c: the CRC-32C (Castagnoli) of a range of bytes, as iSCSI, ext4 and NVMe tools compute it:
// "123456789" gives 0xe3069283.
//
// Any thread. Runs at memory speed (ISA-L; with the processor's instruction if it has one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool {

// `before`: the CRC of the bytes right before these, if a range is computed in parts.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace tidepool
