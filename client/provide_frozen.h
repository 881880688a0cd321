// ProvideFrozen: sees to it that all frozen chunks of a job are in the pool: those that nobody has
// put there yet, or is putting, are put.
//
// One thread. All ranks of a job call it when they have attached, also to a job that was there
// before: an upload that its server did not survive begins again. Each rank begins with chunks of
// its own; when it returns, all of them are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "client/mem_client.h"
#include "shm/spec/job_spec.h"

namespace tidepool::client {

// Fills `bytes` with those of the frozen chunk `index` (of JobSpec::frozen) from byte `begin` on.
using ReadFrozen = std::function<Status(size_t index, uint64_t begin, std::span<std::byte> bytes)>;

// A part of the rCache that is used for nothing else meanwhile; at least two pages.
struct UploadRange {
  uint64_t rcache_offset = 0;
  uint64_t bytes = 0;
  // Where the rank brought its rCache, which no processor can write: copies bytes to this offset of
  // it, and waits until they are there.
  std::function<Status(uint64_t rcache_offset, std::span<const std::byte> bytes)> copy = nullptr;
};

// Bytes that this rank has put. Errors: those of `read`, kContentMismatch (the bytes are not those
// that the specification names), and what ends the session.
Result<uint64_t> ProvideFrozen(MemClient* client, const shm::JobSpec& spec, Rank rank,
                               const UploadRange& range, const ReadFrozen& read);

}  // namespace tidepool::client
