// Search: how to divide the memory of a device: so many blocks for the rCache, and the states of so
// many chunks beside it, so that a step's transfers and updates take the least time (Elixir v2,
// section 5).
//
// Any thread; pure functions of data. The paper decides by two numbers, what one more byte of
// blocks saves (I) and what one more byte of states on the device saves (J), and then fills the
// memory with the better kind first. There are few pairs, so this search tries them all
// (docs/decisions/028-search-not-greedy.md); it reports I and J as the reason.
// Units: rates are of all ranks together: copies in GB/s (10^9 bytes), updates in 10^9 elements/s.
// (The paper's tables 4 and 5 label the latter GB/s; its profiler divides elements by seconds.)
// Gains are seconds saved for each 10^9 bytes of one device.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

struct Rates {  // 0: not known
  double to_device = 0, from_device = 0;
  double host_update = 0, device_update = 0;
};

// Bytes of one element.
struct ElementBytes {
  uint64_t compute = 2;  // as operators use it, and of its gradient (L_c)
  uint64_t update = 4;   // of one plane of the update (L_os)
  double states = 12;    // of all planes of the update (L_os F_os)
};

// What is transferred for a chunk whose states are in host memory.
enum class CostModel : uint8_t {
  // Elixir v2: each step transfers the fp32 master, and the device makes the 16-bit copy; a chunk
  // that leaves the rCache is written back.
  kPaper,
  // This project: the server's update writes the 16-bit copy, and still has it when a chunk leaves:
  // a fetch costs L_c, an eviction nothing.
  kTransfers,
};

// I: seconds that a step saves for 10^9 more bytes of blocks, while backward fetches some chunks
// again. Requires known rates.
double GainOfBlocks(CostModel model, const Rates& rates, const ElementBytes& bytes);
// J: likewise for 10^9 more bytes of states on each of `ranks` devices.
double GainOfStates(CostModel model, const Rates& rates, const ElementBytes& bytes, uint32_t ranks);

// What else takes the memory of a device that one rank uses. The paper's formula (appendix A.1) has
// capacity, buffers and activations; it leaves out `taken`, `spare` and `resident` (its code
// subtracts 2 GiB for the first, and fused parameters for the last).
struct DeviceRoom {
  uint64_t capacity = 0;
  uint64_t taken = 0;        // before the plan: contexts and code of this and other processes
  uint64_t spare = 0;        // what stands in for a chunk after a failure
  uint64_t resident = 0;     // chunks that have fixed room in the rCache
  uint64_t states = 0;       // of chunks whose states lie there in any case
  uint64_t buffers = 0;      // there through the whole step: inputs and targets
  uint64_t activations = 0;  // peak of operators, beside all that
};
// 0.95 (capacity - taken - spare - resident - states - buffers - 1.25 activations); 0 where that is
// negative.
uint64_t AllowedBytes(const DeviceRoom& room);

// One chunk, as the search sees it.
struct SearchChunk {
  uint64_t elements = 0;      // of all shards
  uint64_t states_bytes = 0;  // of one rank's device, where its states lie there
  bool trained = true;
};

// One size of the rCache, with the result of replaying the order.
struct RcacheSize {
  uint64_t blocks = 0;
  std::vector<uint32_t> fetches, submits;  // by ChunkId
};
// All sizes, from the smallest in which the order runs to one where every chunk has a block, or
// `most` evenly spaced ones with both ends (fewer where replays of a long order would take more
// than some seconds).
std::vector<RcacheSize> SizesOf(const AccessSchedule& order, const std::vector<bool>& evictable,
                                uint64_t most = 256);

// What is weighed.
struct SearchInput {
  CostModel model = CostModel::kTransfers;
  // Updates of the host run beside the copies: the longer of the two counts, not their sum.
  bool overlap = false;
  Rates rates;
  uint32_t ranks = 1;
  ElementBytes bytes;
  uint64_t allowed_bytes = 0;  // of one rank's device, for blocks and states
  uint64_t block_bytes = 0;
  std::vector<SearchChunk> chunks;  // by ChunkId; the trained ones first
  std::vector<RcacheSize> sizes;    // ascending; not empty
};

// One way to divide the memory.
struct Share {
  uint64_t blocks = 0;
  // Number of first chunks whose states lie on the device.
  uint64_t uploads = 0;
  uint64_t states_bytes = 0;              // of one device, for them
  uint64_t bytes_up = 0, bytes_down = 0;  // moved by one step, all ranks together
  // Time of its copies and updates; 0 where the rates of the copies are not known.
  double seconds = 0;
  friend bool operator==(const Share&, const Share&) = default;
};

// What came out.
struct SearchChoice {
  Share best;
  Share greedy;                             // what the paper's rule takes
  double blocks_gain = 0, states_gain = 0;  // I and J; 0 where a rate is missing
  // False: a rate is missing, so states on the device were not considered.
  bool states_weighed = false;
  uint64_t left_bytes = 0;  // of what was allowed
  uint64_t tried = 0;       // shares that were looked at
};

// Errors: kRcacheTooSmall (what is allowed has no room for the smallest rCache).
Result<SearchChoice> Search(const SearchInput& input);
// The cost of these blocks (one of input.sizes) and uploads (at most as many as trained chunks),
// whether there is room for them or not.
Share CostOf(const SearchInput& input, const RcacheSize& size, uint64_t uploads);

}  // namespace tidepool::trainer
