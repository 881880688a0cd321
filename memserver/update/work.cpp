#include "memserver/update/work.h"

#include "base/planted.h"

namespace tidepool::memserver {

uint64_t PieceIdentity(const JobStates& states, const HostPool& pool, const void* progress) {
  return (TP_PLANTED("update.piece_named_by_place") ? 1 : states.record().nonce | 1) +
         2 * (pool.OffsetOf(progress) / sizeof(optim::ProgressWord));
}

}  // namespace tidepool::memserver
