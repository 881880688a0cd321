#include "trainer/plan/moment_budget.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kWarmUpParts = 5;  // of the limit, one is for chunks

// N of the moment and of the one before.
uint64_t OthersAround(const std::vector<uint64_t>& others, size_t moment) {
  return std::max(others[moment], moment > 0 ? others[moment - 1] : 0);
}

}  // namespace

uint64_t MemoryRoom::BlocksBeside(uint64_t others) const {
  const uint64_t taken = resident + others;
  if (block_bytes == 0 || taken >= limit) return 0;
  return std::min(blocks, (limit - taken) / block_bytes);
}

std::vector<uint64_t> BlockBudgets(const std::vector<uint64_t>& others, const MemoryRoom& room) {
  std::vector<uint64_t> budgets;
  for (size_t moment = 0; moment < others.size(); ++moment)
    budgets.push_back(room.BlocksBeside(OthersAround(others, moment)));
  return budgets;
}

uint64_t WarmUpBlocks(const MemoryRoom& room) {
  return room.BlocksBeside(room.limit - room.limit / kWarmUpParts);
}

uint64_t SmallestLimit(const std::vector<uint64_t>& needs, const std::vector<uint64_t>& others,
                       const MemoryRoom& room) {
  TP_CHECK(needs.size() == others.size(), "both lists are of one order");
  uint64_t limit = 0;
  for (size_t moment = 0; moment < needs.size(); ++moment)
    limit = std::max(limit, needs[moment] * room.block_bytes + OthersAround(others, moment));
  return limit + room.resident;
}

}  // namespace tidepool::trainer
