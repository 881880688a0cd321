// StartTuning: the measurements of a server before it serves, in unused memory of its pool.
//
// The main thread, before the serve loop exists. The memory is returned; its contents are lost.
#pragma once

#include "base/clock.h"
#include "device/host/host_device.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/update/worker_team.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

// Chooses the copy kernel, in a new pool, which is all zeros and stays so. An adopted pool holds
// jobs, and a restart must be quick: nothing is measured there.
device::CopyTuning TuneCopies(device::HostDevice* device, HostPool* pool, bool adopted);
// Chooses the prefetch distance of this team's updates. The pages were touched already. The default
// if the pool has too little room.
optim::Tuning TuneUpdates(const WorkerTeam& team, HostPool* pool, const Clock& clock);

}  // namespace tidepool::memserver
