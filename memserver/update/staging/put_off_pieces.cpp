#include "memserver/update/staging/put_off_pieces.h"

#include <algorithm>

namespace tidepool::memserver {

std::optional<UnwrittenPiece> PutOffPieces::TakeDue(int64_t now_ns, const StagingTable& staging) {
  const auto due = std::find_if(pieces_.begin(), pieces_.end(), [now_ns](const PutOffPiece& each) {
    return each.due_ns <= now_ns;
  });
  if (due == pieces_.end() || !staging.HasRoom(due->last.directory)) return std::nullopt;
  const UnwrittenPiece piece = due->last;
  pieces_.erase(due);
  return piece;
}

int64_t PutOffPieces::next_due_ns() const {
  int64_t due = INT64_MAX;
  for (const PutOffPiece& each : pieces_) due = std::min(due, each.due_ns);
  return due;
}

}  // namespace tidepool::memserver
