#include "memserver/loop/updated_chunk.h"

#include <utility>

namespace tidepool::memserver {

// Parked requests are tried again only if one of them names this chunk: a job has many chunks, and
// a request may wait for the last of them.
void NoteUpdated(Tables* tables, Job* job, ChunkId id) {
  Chunk& chunk = job->states->chunk(id);
  if (std::exchange(chunk.awaited, false)) job->NoteProgress(JobProgress::kVersionPublished);
  for (const ParameterRun& run : job->states->runs(chunk))
    tables->counters.parameters_updated += run.count;
}

}  // namespace tidepool::memserver
