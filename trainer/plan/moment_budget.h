// MomentBudget: how many blocks of the rCache may be in use at each moment of an order, so that
// chunks and all else on a rank's device stay within a limit (the runtime tracer of PatrickStar,
// sections 7.1 and 8).
//
// Any thread; pure functions. The paper's words: memory in use at moment i is R_i, the chunks' part
// of it C_i, all else N_i = R_i - C_i. Here the N_i of a moment is the most from that moment until
// the next one, so that operators between two moments count.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

// The memory of one rank's device.
struct MemoryRoom {
  uint64_t limit = 0;        // bytes of all that the rank uses
  uint64_t resident = 0;     // bytes of chunks with a place of their own
  uint64_t block_bytes = 0;  // of one block; 0: there are none
  uint64_t blocks = 0;       // of the rCache

  // Blocks that fit beside `others` bytes and the resident chunks; at most `blocks`.
  uint64_t BlocksBeside(uint64_t others) const;
};

// By moment, the blocks that may be in use from that moment until the next one. `others`: by
// moment, the bytes beside all chunks. A block may be taken just before its moment, so that the
// larger of a moment's and the former's counts (the paper's max(N_j, N_j+1)).
std::vector<uint64_t> BlockBudgets(const std::vector<uint64_t>& others, const MemoryRoom& room);

// The blocks of a step that measures `others`, where its moments need no more: a fifth of the limit
// is for chunks, as in the paper.
uint64_t WarmUpBlocks(const MemoryRoom& room);

// The smallest limit under which an order that needs these blocks can run: the budgets of no moment
// are below its needs. Both lists are by moment.
uint64_t SmallestLimit(const std::vector<uint64_t>& needs, const std::vector<uint64_t>& others,
                       const MemoryRoom& room);

}  // namespace tidepool::trainer
