#include "trainer/cache/moment_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"

namespace tidepool::trainer {

MomentMemory::MomentMemory(MemoryLimit limit, MemoryRoom room)
    : limit_(std::move(limit)), room_(room) {
  room_.limit = limit_.bytes;
}

uint64_t MomentMemory::TakePeak(uint64_t blocks) {
  const uint64_t others = limit_.take_peak();
  most_ = std::max(most_, room_.resident + blocks * room_.block_bytes + others);
  return others;
}

void MomentMemory::BeginPass(uint64_t blocks) {
  if (!on()) return;
  TakePeak(blocks);
  at_begin_ = limit_.take_peak();  // at once: what is there now
  others_.clear();
}

void MomentMemory::EndPeriod(uint64_t position, uint64_t blocks) {
  if (!on()) return;
  if (others_.size() <= position) others_.resize(position + 1, 0);
  others_[position] = std::max(others_[position], TakePeak(blocks));
}

uint64_t MomentMemory::WarmUp() const {
  const uint64_t blocks = WarmUpBlocks(room_);
  return expected_ == 0 ? blocks : std::min(blocks, room_.BlocksBeside(expected_));
}

Result<std::vector<uint64_t>> MomentMemory::Budgets(const std::vector<uint64_t>& needs) const {
  std::vector<uint64_t> others = others_;
  others.resize(needs.size(), 0);
  // What the pass has left behind, as tables that it has made, is there at all moments of the next.
  const uint64_t now = limit_.take_peak(), left = now - std::min(now, at_begin_);
  for (uint64_t& bytes : others) bytes += left;

  TP_RETURN_IF_ERROR(limit_.most_of_ranks(&others));
  std::vector<uint64_t> budgets = BlockBudgets(others, room_);

  for (size_t moment = 0; moment < needs.size(); ++moment) {
    if (needs[moment] <= budgets[moment]) continue;

    const uint64_t smallest = SmallestLimit(needs, others, room_);

    const std::string why = std::to_string(needs[moment]) + " blocks of " +
                            FormatBytes(room_.block_bytes) + ", " + FormatBytes(room_.resident) +
                            " of resident chunks, and " + FormatBytes(others[moment]) +
                            " beside them, as the first step has shown";

    return Status(ErrorId::kRcacheTooSmall,
                  FormatBytes(limit_.bytes) +
                      " of memory do not hold what a step needs at moment " +
                      std::to_string(moment + 1) + " of " + std::to_string(needs.size()))
        .Where("--device-memory " + std::to_string(limit_.bytes))
        .Why(why)
        .Fix("give --device-memory at least " + std::to_string(smallest) + " (" +
             FormatBytes(smallest) + "), or a smaller --batch");
  }
  return budgets;
}

}  // namespace tidepool::trainer
