// NoteRcacheContent: which chunk the bytes of an rCache hold, for the residency picture.
//
// Called by the serve loop.
#pragma once

#include <optional>

#include "base/hot.h"
#include "memserver/residency/job_states.h"
#include "memserver/traffic/session.h"

namespace tidepool::memserver {

// The rCache bytes of `request` hold its chunk from now on, or, without `holds_chunk` (a gradient),
// none.
TP_HOT inline void NoteRcacheContent(JobStates* states, Session* session,
                                     const shm::Request& request, bool holds_chunk) {
  const shm::JobSpec& spec = states->spec();
  const uint64_t bytes =
      request.element_count *
      BytesOf(holds_chunk ? spec.DTypeOf(request.chunk)
                          : shm::SubmittedType(spec, request.chunk, shm::IsSummed(request)));

  const std::optional<ChunkId> chunk =
      holds_chunk ? std::optional<ChunkId>(request.chunk) : std::nullopt;
  for (const ChunkId gone : session->rcache_map().Replace(request.rcache_offset, bytes, chunk)) {
    states->RanksCached(gone) &= ~(uint64_t{1} << session->rank());
  }
}

}  // namespace tidepool::memserver
