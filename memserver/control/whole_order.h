// WholeOrder: an order of all of a job's chunks from the uses that a trainer declared: each chunk
// at its first use, then the chunks that the trainer left out. The serve loop uses it unchanged.
//
// Any thread. Takes up to about 20 ms, in proportion to the entries of both, so it is not done on
// the serve loop.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ids.h"

namespace tidepool::memserver {

// Requires that `declared` names only chunks of the job.
inline std::shared_ptr<const std::vector<ChunkId>> WholeOrder(std::span<const ChunkId> declared,
                                                              size_t chunks) {
  std::vector<bool> named(chunks, false);
  std::vector<ChunkId> order;
  order.reserve(chunks);
  const auto add = [&](ChunkId id) {
    TP_CHECK(id < chunks, "a schedule was checked");
    if (!named[id]) order.push_back(id);
    named[id] = true;
  };

  for (const ChunkId id : declared) add(id);
  for (ChunkId id = 0; id < chunks; ++id) add(id);
  return std::make_shared<const std::vector<ChunkId>>(std::move(order));
}

}  // namespace tidepool::memserver
