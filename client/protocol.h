// The number of the protocol between client and server, for `version` outputs.
#pragma once

#include <cstdint>

#include "shm/messages.h"

namespace tidepool::client {

inline constexpr uint32_t kProtocol = shm::kAbiVersion;

}  // namespace tidepool::client
