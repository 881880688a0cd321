// Access: who may connect to memserver's sockets, and who may change what through the admin socket.
// The kernel identifies the peer; what the peer says about itself does not count.
//
// Any thread; value types. In *private* mode the sockets belong to their owner and root. In
// *service* mode the members of one group may connect, each to their own jobs, and those of another
// group operate. Root and the user that memserver runs as may do everything in both modes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::memserver {

struct Access {
  bool is_service = false;
  uint32_t owner = 0;           // uid that memserver runs as
  uint32_t group = 0;           // for service mode: may connect
  uint32_t operator_group = 0;  // for service mode: may operate
  // Modes of the socket directory and of the sockets.
  mode_t directory_mode() const { return is_service ? 0750 : 0700; }
  mode_t socket_mode() const { return is_service ? 0660 : 0600; }
};

// Private access for the user that this process runs as.
Access PrivateAccess();
// Service access; groups by name or number. Errors: kConfigBadValue (no such group).
Result<Access> ServiceAccess(const std::string& group, const std::string& operator_group);

// The user at the other end of a Unix socket.
struct PeerUser {
  uint32_t uid = 0;
  int32_t pid = 0;
  std::vector<uint32_t> groups;  // primary and supplementary
};
// Reads SO_PEERCRED and SO_PEERGROUPS. Errors: kHandshakeBad.
Result<PeerUser> UserAt(int socket);

// Each level may do everything that the levels before it may.
enum class AdminLevel : uint8_t {
  kNone,      // may not connect
  kUser,      // sees and handles its own jobs
  kOperator,  // sees and handles all jobs
  kAdmin,     // handles the server too
};
const char* NameOf(AdminLevel level);
AdminLevel LevelOf(const Access& access, const PeerUser& user);
// Ok when this user may have sessions. Errors: kNotOwner.
Status CheckMayConnect(const Access& access, const PeerUser& user);

}  // namespace tidepool::memserver
