// The descriptor store of systemd as the keeper: it holds memfds while the service is restarted,
// and hands them to the next process.
//
// memserver's main thread, before other threads start (the environment is read and changed). The
// service needs Type=notify, FileDescriptorStoreMax=N and Restart=on-failure; see
// sd_pid_notify_with_fds(3). What is stored for a slot stays under the name "tidepool-kept-<slot>";
// storing a slot twice adds a second descriptor, so remove first.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "memserver/keeper/keeper_messages.h"

namespace tidepool::memserver {

// True under a service manager that offers a store (FDSTORE), or that has handed something of ours
// back.
bool FdStoreOffered();
// What an earlier process stored, in order of slot; its LISTEN_... variables are removed. Every
// inherited descriptor becomes close-on-exec; those with other names stay open. `bytes` is the size
// of the memfd.
std::vector<HeldMemory> TakeStored();
// Errors: kKeeperFailed (the manager does not take messages).
Status Store(uint32_t slot, int fd);
void RemoveStored(uint32_t slot);

}  // namespace tidepool::memserver
