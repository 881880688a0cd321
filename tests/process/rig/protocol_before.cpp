// The protocol of the release before this one alone, in place of shm/own_protocols.cpp: programs
// named ..._before are linked with it.
#include "shm/messages.h"
#include "shm/protocol.h"

namespace tidepool::shm {

const ProtocolRange kOwnProtocols{kAbiVersionBefore, kAbiVersionBefore};

}  // namespace tidepool::shm
