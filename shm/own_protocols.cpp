#include "shm/messages.h"
#include "shm/protocol.h"

namespace tidepool::shm {

const ProtocolRange kOwnProtocols{kAbiVersionBefore, kAbiVersion};

}  // namespace tidepool::shm
