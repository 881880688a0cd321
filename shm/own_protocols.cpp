#include "shm/messages.h"
#include "shm/protocol.h"

namespace tidepool::shm {

const ProtocolRange kOwnProtocols{kAbiVersion, kAbiVersion};

}  // namespace tidepool::shm
