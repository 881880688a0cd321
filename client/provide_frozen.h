// ProvideFrozen: makes sure that all frozen chunks of a job are in the pool: puts those that nobody
// has put or is putting.
//
// One thread. All ranks of a job call it after attaching, also to an existing job: an upload
// interrupted by its server's end starts over. Each rank begins with different chunks; when it
// returns, all of them are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "client/mem_client.h"
#include "shm/spec/job_spec.h"

namespace tidepool::client {

// Fills `bytes` from frozen chunk `index` (of JobSpec::frozen), from byte `begin` on.
using ReadFrozen = std::function<Status(size_t index, uint64_t begin, std::span<std::byte> bytes)>;

// A part of the rCache that is otherwise unused during the upload; at least two pages.
struct UploadRange {
  uint64_t rcache_offset = 0;
  uint64_t bytes = 0;
  // If the rank brought its rCache, which a CPU cannot write: copies bytes to this offset of it;
  // blocks until they are there.
  std::function<Status(uint64_t rcache_offset, std::span<const std::byte> bytes)> copy = nullptr;
};

// Returns the bytes that this rank has put. Errors: those of `read`, kContentMismatch (the bytes do
// not match the specification's hash), and what ends the session.
Result<uint64_t> ProvideFrozen(MemClient* client, const shm::JobSpec& spec, Rank rank,
                               const UploadRange& range, const ReadFrozen& read);

}  // namespace tidepool::client
