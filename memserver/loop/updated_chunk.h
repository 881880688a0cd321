// NoteUpdated: what follows when a chunk has a new version.
//
// One thread (the serve loop).
#pragma once

#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

// Lets the requests that wait for the chunk be tried again, and counts its parameters.
void NoteUpdated(Tables* tables, Job* job, ChunkId id);

}  // namespace tidepool::memserver
