// The protocols of the release after this one, in place of shm/own_protocols.cpp: programs named
// ..._next are linked with it.
#include "shm/messages.h"
#include "shm/protocol.h"

namespace tidepool::shm {

const ProtocolRange kOwnProtocols{kAbiVersion, kAbiVersion + 1};

}  // namespace tidepool::shm
