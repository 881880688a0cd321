// StartTuning: what a server measures before it serves, in memory of its pool that no job has.
//
// The main thread, before the serve loop exists. The memory is given back; what it held is lost.
#pragma once

#include "base/clock.h"
#include "device/host/host_device.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/update/worker_team.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

// The copy kernel, chosen in a new pool, which is all zeros and stays so. An adopted pool holds
// jobs, and a restart is in a hurry: nothing is measured there.
device::CopyTuning TuneCopies(device::HostDevice* device, HostPool* pool, bool adopted);
// How far ahead updates of this team ask for memory. The pages were touched already. The default
// where the pool has too little room.
optim::Tuning TuneUpdates(const WorkerTeam& team, HostPool* pool, const Clock& clock);

}  // namespace tidepool::memserver
