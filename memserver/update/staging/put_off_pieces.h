// UnwrittenPiece: a piece of states that a drive did not take. PutOffPieces: the pieces of one job
// that will be made and written again later.
//
// One thread (the serve loop). A put-off piece is not in staging: the former epoch's slot and the
// gradient still exist, so it can be made again from these.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "memserver/traffic/staging/staging_table.h"

namespace tidepool::memserver {

struct UnwrittenPiece {
  uint32_t staging = 0;  // slot
  ChunkId chunk = 0;
  uint32_t piece = 0;
  uint32_t directory = 0;
  uint64_t offset = 0;  // where it failed, in the data file
  int error = 0;
  uint32_t times = 0;   // how often it was put off before
  bool out = false;     // the drive has not answered and may still write: it cannot be put off
  bool update = false;  // else the chunk's first states
  uint64_t epoch = 0;   // of the states to be written
};

struct PutOffPiece {
  UnwrittenPiece last;  // as it last failed
  int64_t due_ns = 0;
};

class PutOffPieces {
 public:
  // Puts the piece off until `due_ns` on the loop's clock.
  void Add(const UnwrittenPiece& piece, int64_t due_ns) { pieces_.push_back({piece, due_ns}); }
  // Takes out the oldest due piece; nothing while staging has no room for it.
  std::optional<UnwrittenPiece> TakeDue(int64_t now_ns, const StagingTable& staging);
  // When the next piece is due; INT64_MAX: none.
  int64_t next_due_ns() const;
  bool empty() const { return pieces_.empty(); }
  std::span<const PutOffPiece> all() const { return pieces_; }
  void Clear() { pieces_.clear(); }

 private:
  std::vector<PutOffPiece> pieces_;  // in the order of Add
};

}  // namespace tidepool::memserver
