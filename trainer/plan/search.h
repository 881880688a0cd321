// Search: divides the memory of a device between rCache blocks and the states of some chunks so
// that a step's transfers and updates take the least time (Elixir v2, section 5).
//
// Any thread; pure functions of data. The paper decides by two numbers, the saving per byte of
// blocks (I) and per byte of states on the device (J), and fills the memory with the better kind
// first. The number of pairs is small, so this search tries them all
// (docs/decisions/028-search-not-greedy.md); it reports I and J as the reason.
// Units: rates are totals of all ranks: copies in GB/s (10^9 bytes), updates in 10^9 elements/s.
// (The paper's tables 4 and 5 label the latter GB/s; its profiler divides elements by seconds.)
// Gains are seconds saved per 10^9 bytes of one device.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

struct Rates {  // 0: unknown
  double to_device = 0, from_device = 0;
  double host_update = 0, device_update = 0;
};

// Bytes per element.
struct ElementBytes {
  uint64_t compute = 2;  // of parameters in operators, and of their gradients (L_c)
  uint64_t update = 4;   // of one plane in the update (L_os)
  double states = 12;    // of all planes in the update (L_os F_os)
};

// Traffic of a chunk whose states are in host memory.
enum class CostModel : uint8_t {
  // Elixir v2: each step transfers the fp32 master, and the device makes the 16-bit copy; a chunk
  // that leaves the rCache is written back.
  kPaper,
  // This project: the server's update writes the 16-bit copy and keeps it, so a fetch costs L_c and
  // an eviction nothing.
  kTransfers,
};

// I: seconds saved per step by 10^9 more bytes of blocks, while backward refetches some chunks.
// Requires known rates.
double GainOfBlocks(CostModel model, const Rates& rates, const ElementBytes& bytes);
// J: the same for 10^9 more bytes of states on each of `ranks` devices.
double GainOfStates(CostModel model, const Rates& rates, const ElementBytes& bytes, uint32_t ranks);

// Other uses of the memory of a device with one rank. The paper's formula (appendix A.1) has
// capacity, buffers and activations; it leaves out `taken`, `spare` and `resident` (its code
// subtracts 2 GiB for the first, and fused parameters for the last).
struct DeviceRoom {
  uint64_t capacity = 0;
  uint64_t taken = 0;        // before the plan: contexts and code of this and other processes
  uint64_t spare = 0;        // the fallback block for a chunk after a failure
  uint64_t resident = 0;     // chunks with fixed space in the rCache
  uint64_t states = 0;       // of chunks whose states are on the device anyway
  uint64_t buffers = 0;      // allocated during the whole step: inputs and targets
  uint64_t activations = 0;  // peak of operators, in addition to the above
};
// 0.95 (capacity - taken - spare - resident - states - buffers - 1.25 activations); 0 if that is
// negative.
uint64_t AllowedBytes(const DeviceRoom& room);

// One chunk, as the search sees it.
struct SearchChunk {
  uint64_t elements = 0;      // of all ranks
  uint64_t states_bytes = 0;  // on one rank's device, if its states are there
  bool trained = true;
};

// One size of the rCache, with the result of replaying the order.
struct RcacheSize {
  uint64_t blocks = 0;
  std::vector<uint32_t> fetches, submits;  // by ChunkId
};
// The size of so many blocks. Requires at least those of SmallestRcache.
RcacheSize SizeOf(const AccessSchedule& order, const std::vector<bool>& evictable, uint64_t blocks);
// All sizes, from the smallest in which the order runs to one block per chunk, or `most` evenly
// spaced ones including both ends (fewer if replaying a long order would take more than a few
// seconds).
std::vector<RcacheSize> SizesOf(const AccessSchedule& order, const std::vector<bool>& evictable,
                                uint64_t most = 256);

// Input of the search.
struct SearchInput {
  CostModel model = CostModel::kTransfers;
  // Host updates overlap the copies: the longer of the two counts, not their sum.
  bool overlap = false;
  Rates rates;
  uint32_t ranks = 1;
  ElementBytes bytes;
  uint64_t allowed_bytes = 0;  // for blocks and states on one rank's device
  uint64_t block_bytes = 0;
  std::vector<SearchChunk> chunks;  // by ChunkId; the trained ones first
  std::vector<RcacheSize> sizes;    // ascending; not empty
};

// One division of the memory.
struct Share {
  uint64_t blocks = 0;
  // The number of leading chunks whose states are on the device.
  uint64_t uploads = 0;
  uint64_t states_bytes = 0;              // their size on one device
  uint64_t bytes_up = 0, bytes_down = 0;  // moved by one step, all ranks together
  // Time of its copies and updates; 0 if the copy rates are unknown.
  double seconds = 0;
  friend bool operator==(const Share&, const Share&) = default;
};

// Result of the search.
struct SearchChoice {
  Share best;
  Share greedy;                             // the choice of the paper's rule
  double blocks_gain = 0, states_gain = 0;  // I and J; 0 if a rate is missing
  // False: a rate is missing, so states on the device were not considered.
  bool states_weighed = false;
  uint64_t left_bytes = 0;  // unused part of the allowed bytes
  uint64_t tried = 0;       // number of shares evaluated
};

// Errors: kRcacheTooSmall (the allowed bytes do not hold the smallest rCache).
Result<SearchChoice> Search(const SearchInput& input);
// The cost with this size (one of input.sizes) and number of uploads (at most the trained chunks),
// whether or not they fit.
Share CostOf(const SearchInput& input, const RcacheSize& size, uint64_t uploads);

}  // namespace tidepool::trainer
