// What two processes do with shared memory in the tests of this folder.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/units.h"
#include "device/device.h"
#include "tests/device/device_forms.h"

namespace tidepool::device {

inline constexpr uint64_t kSharedBytes = 2 * kMiB;
inline constexpr uint64_t kBlockBytes = 64 * kKiB;
inline constexpr uint64_t kPassRounds = 200;
inline constexpr const char* kPeerText = "written by the other process";

// The block goes to and fro between two processes, which both add one to each byte in their turns:
// two flags at the start of a page order their streams.
inline Status PassBlock(Device* device, std::byte* block, std::byte* page, bool first) {
  auto* flags = reinterpret_cast<Flag*>(page);
  TP_ASSIGN_OR_RETURN(const auto stream, device->OpenStream());
  const Pages local(device, kBlockBytes);
  TP_RETURN_IF_ERROR(local.status());
  for (uint64_t round = 0; round < kPassRounds; ++round) {
    stream->WaitFlag(&flags[first ? 1 : 0], first ? round : round + 1);
    stream->Copy(local.as<std::byte>(), block, kBlockBytes);
    stream->Synchronize(stream->Record());
    for (uint64_t i = 0; i < kBlockBytes; ++i) ++local.as<uint8_t>()[i];
    stream->Copy(block, local.as<std::byte>(), kBlockBytes);
    stream->WriteFlag(&flags[first ? 0 : 1], round + 1);
    stream->Synchronize(stream->Record());
    TP_RETURN_IF_ERROR(stream->status());
  }
  return {};
}

}  // namespace tidepool::device
