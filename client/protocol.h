// The newest protocol version between client and server, for `version` output.
#pragma once

#include <cstdint>

#include "shm/protocol.h"

namespace tidepool::client {

// The highest version that this program speaks.
inline uint32_t Protocol() {
  return shm::kOwnProtocols.highest;
}

}  // namespace tidepool::client
