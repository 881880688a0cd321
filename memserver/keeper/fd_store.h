// The systemd descriptor store used as the keeper: it holds memfds while the service restarts, and
// passes them to the next process.
//
// memserver's main thread, before other threads start (the environment is read and changed). The
// service needs Type=notify, FileDescriptorStoreMax=N and Restart=on-failure; see
// sd_pid_notify_with_fds(3). A slot is stored under the name "tidepool-kept-<slot>"; storing a slot
// twice adds a second descriptor, so remove it first.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "memserver/keeper/keeper_messages.h"

namespace tidepool::memserver {

// True under a service manager that offers a store (FDSTORE), or that has returned a descriptor of
// ours.
bool FdStoreOffered();
// The descriptors that an earlier process stored, in order of slot; removes the LISTEN_...
// variables. Every inherited descriptor becomes close-on-exec; those with other names stay open.
// `bytes` is the size of the memfd.
std::vector<HeldMemory> TakeStored();
// Stores a descriptor. Errors: kKeeperFailed (the manager does not take messages).
Status Store(uint32_t slot, int fd);
void RemoveStored(uint32_t slot);

}  // namespace tidepool::memserver
