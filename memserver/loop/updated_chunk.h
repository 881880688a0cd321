// NoteUpdated: the consequences of a chunk's new version.
//
// One thread (the serve loop).
#pragma once

#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

// Retries the requests that wait for the chunk, and counts its parameters.
void NoteUpdated(Tables* tables, Job* job, ChunkId id);

}  // namespace tidepool::memserver
