// The location of memserver's sockets: the one rule that memserver, memctl and trainer share.
//
// Any thread. A socket directory holds data.sock (trainers), admin.sock (HTTP), keeper.sock
// (memserver's keeper) and memserver.lock (pid of the server that owns it).
#pragma once

#include <string>

#include "base/status.h"

namespace tidepool::shm {

inline constexpr const char* kSystemSocketDir = "/run/tidepool";

// Where a memserver of this user serves: $TIDEPOOL_SOCKET_DIR; else /run/tidepool if it exists and
// this user may write there; else $XDG_RUNTIME_DIR/tidepool; else /tmp/tidepool-<uid>.
std::string DefaultSocketDir(const std::string& system_dir = kSystemSocketDir);
// Where a client looks for one: the same; but if nothing serves in this user's own directory, the
// system's, if it exists, even if it is not open to this user (the service's group may enter it,
// but not write).
std::string DefaultClientDir(const std::string& system_dir = kSystemSocketDir);

// The files of a socket directory.
std::string DataSocketPath(const std::string& socket_dir);
std::string AdminSocketPath(const std::string& socket_dir);
std::string KeeperSocketPath(const std::string& socket_dir);
std::string LockFilePath(const std::string& socket_dir);
// The file of the machine's measured rates (memserver/probe/rates_process.h).
std::string RatesPath(const std::string& socket_dir);

// Checks that the paths above fit into a Unix socket address (107 bytes). Errors: kSocketFailed.
Status CheckSocketDir(const std::string& socket_dir);

}  // namespace tidepool::shm
