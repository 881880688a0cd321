#include "trainer/plan/search.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace {

constexpr double kGiga = 1e9;
constexpr uint64_t kLooksMax = 1U << 28;  // limits the replays to a few seconds

bool CopiesKnown(const Rates& rates) {
  return rates.to_device > 0 && rates.from_device > 0;
}
bool UpdatesKnown(const Rates& rates) {
  return rates.host_update > 0 && rates.device_update > 0;
}

// Bytes to and from the device for one chunk whose states are in host memory.
struct Moved {
  uint64_t up = 0, down = 0;
};

Moved MovedFor(const SearchInput& input, const SearchChunk& chunk, uint64_t fetches,
               uint64_t submits) {
  const uint64_t one = chunk.elements * input.bytes.compute;
  Moved moved{.up = fetches * one, .down = submits * one};
  if (input.model == CostModel::kTransfers || fetches == 0 || !chunk.trained) return moved;
  // A step's first fetch transfers what the update has written; every later fetch is of a chunk
  // that was written back before.
  moved.up = chunk.elements * input.bytes.update + (fetches - 1) * one;
  moved.down += (fetches - 1) * one;
  return moved;
}

// Builds a share step by step: moves the states of one chunk after another to the device.
class Tally {
 public:
  Tally(const SearchInput& input, const RcacheSize& size)
      : input_(input), size_(size), share_{.blocks = size.blocks} {
    for (size_t chunk = 0; chunk < input.chunks.size(); ++chunk) {
      const Moved moved = MovedOf(chunk);
      share_.bytes_up += moved.up;
      share_.bytes_down += moved.down;
      host_elements_ += input.chunks[chunk].trained ? input.chunks[chunk].elements : 0;
    }
  }

  void UploadNext() {
    const SearchChunk& chunk = input_.chunks[share_.uploads];
    const Moved moved = MovedOf(share_.uploads);
    share_.bytes_up -= moved.up;
    share_.bytes_down -= moved.down;
    share_.states_bytes += chunk.states_bytes;
    host_elements_ -= chunk.elements;
    device_elements_ += chunk.elements;
    ++share_.uploads;
  }

  Share share() const {
    Share share = share_;
    const Rates& rates = input_.rates;
    if (!CopiesKnown(rates)) return share;

    const auto seconds = [](uint64_t amount, double rate) {
      return rate > 0 ? static_cast<double>(amount) / rate / kGiga : 0;
    };

    const double copies =
        seconds(share.bytes_up, rates.to_device) + seconds(share.bytes_down, rates.from_device);
    const double host = seconds(host_elements_, rates.host_update);
    share.seconds = (input_.overlap ? std::max(copies, host) : copies + host) +
                    seconds(device_elements_, rates.device_update);
    return share;
  }

 private:
  Moved MovedOf(size_t chunk) const {
    return MovedFor(input_, input_.chunks[chunk], size_.fetches[chunk], size_.submits[chunk]);
  }

  const SearchInput& input_;
  const RcacheSize& size_;
  Share share_;
  uint64_t host_elements_ = 0, device_elements_ = 0;
};

// Prefers less time, then fewer bytes, then less device memory.
bool IsBetter(const Share& a, const Share& b) {
  const auto key = [](const Share& s) {
    return std::make_tuple(s.seconds, s.bytes_up + s.bytes_down, s.uploads, s.blocks);
  };
  return key(a) < key(b);
}

// How much of each kind fits into the allowed memory.
class Room {
 public:
  explicit Room(const SearchInput& input) : input_(input) {
    // Frozen chunks have no states.
    for (const SearchChunk& chunk : input.chunks) {
      if (!chunk.trained || !CopiesKnown(input.rates) || !UpdatesKnown(input.rates)) break;
      states_.push_back((states_.empty() ? 0 : states_.back()) + chunk.states_bytes);
    }
  }
  uint64_t LeftBy(uint64_t blocks) const {
    return input_.allowed_bytes - std::min(input_.allowed_bytes, blocks * input_.block_bytes);
  }
  bool HasBlocks(uint64_t blocks) const {
    return blocks * input_.block_bytes <= input_.allowed_bytes;
  }
  // The most leading chunks whose states fit.
  uint64_t UploadsIn(uint64_t bytes) const {
    return static_cast<uint64_t>(std::upper_bound(states_.begin(), states_.end(), bytes) -
                                 states_.begin());
  }
  // The largest size that fits.
  const RcacheSize& SizeIn(uint64_t bytes) const {
    const RcacheSize* found = &input_.sizes.front();
    for (const RcacheSize& size : input_.sizes) {
      if (size.blocks * input_.block_bytes <= bytes) found = &size;
    }
    return *found;
  }

 private:
  const SearchInput& input_;
  std::vector<uint64_t> states_;  // of the first 1, 2, ... chunks
};

// Section 5.1: the smallest rCache, then the most of the better kind, then the other kind.
Share Greedy(const SearchInput& input, const Room& room, bool states_first) {
  if (!states_first) {
    const RcacheSize& size = room.SizeIn(input.allowed_bytes);
    return CostOf(input, size, room.UploadsIn(room.LeftBy(size.blocks)));
  }
  const uint64_t uploads = room.UploadsIn(room.LeftBy(input.sizes.front().blocks));
  const uint64_t states = CostOf(input, input.sizes.front(), uploads).states_bytes;
  return CostOf(input, room.SizeIn(input.allowed_bytes - states), uploads);
}

Status NoRoom(const SearchInput& input) {
  const uint64_t needed = input.sizes.front().blocks * input.block_bytes;
  return Status(ErrorId::kRcacheTooSmall,
                "the order of use needs " + Counted(input.sizes.front().blocks, "block") + " of " +
                    FormatBytes(input.block_bytes) + " (" + FormatBytes(needed) + "), and " +
                    FormatBytes(input.allowed_bytes) + " of the device can be given to them");
}

}  // namespace

double GainOfBlocks(CostModel model, const Rates& rates, const ElementBytes& bytes) {
  const auto compute = static_cast<double>(bytes.compute);
  const double reload = compute / rates.to_device;
  return (model == CostModel::kPaper ? reload + compute / rates.from_device : reload) / compute;
}

double GainOfStates(CostModel model, const Rates& rates, const ElementBytes& bytes,
                    uint32_t ranks) {
  const auto compute = static_cast<double>(bytes.compute),
             update = static_cast<double>(bytes.update);
  const double first = (model == CostModel::kPaper ? update : compute) / rates.to_device;
  const double again = compute * GainOfBlocks(model, rates, bytes);
  const double gradient = compute / rates.from_device;
  const double updates = 1 / rates.host_update - 1 / rates.device_update;
  return ranks / (compute + bytes.states) * (first + again + gradient + updates);
}

uint64_t AllowedBytes(const DeviceRoom& room) {
  const uint64_t others = room.taken + room.spare + room.resident + room.states + room.buffers +
                          room.activations + room.activations / 4;
  return (room.capacity - std::min(room.capacity, others)) / 20 * 19;
}

RcacheSize SizeOf(const AccessSchedule& order, const std::vector<bool>& evictable,
                  uint64_t blocks) {
  Result<Plan> plan = BeladySimulate(order, {evictable, blocks, {}});
  TP_CHECK(plan.ok(), "the smallest rCache is enough");
  return {blocks, std::move(plan.value().fetches_of_chunk),
          std::move(plan.value().submits_of_chunk)};
}

std::vector<RcacheSize> SizesOf(const AccessSchedule& order, const std::vector<bool>& evictable,
                                uint64_t most) {
  const uint64_t smallest = SmallestRcache(order, evictable);
  const auto largest = std::max<uint64_t>(
      smallest, static_cast<uint64_t>(std::count(evictable.begin(), evictable.end(), true)));
  // The work of a replay is at most moments x blocks.
  most = std::clamp<uint64_t>(kLooksMax / std::max<uint64_t>(1, order.moments.size() * largest), 2,
                              std::max<uint64_t>(2, most));
  const uint64_t count = std::min(largest - smallest + 1, most);

  std::vector<RcacheSize> sizes;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t blocks =
        count == 1 ? largest : smallest + i * (largest - smallest) / (count - 1);
    sizes.push_back(SizeOf(order, evictable, blocks));
  }
  return sizes;
}

Share CostOf(const SearchInput& input, const RcacheSize& size, uint64_t uploads) {
  Tally tally(input, size);
  for (uint64_t chunk = 0; chunk < uploads; ++chunk) tally.UploadNext();
  return tally.share();
}

Result<SearchChoice> Search(const SearchInput& input) {
  TP_CHECK(!input.sizes.empty() && input.ranks > 0, "a search has something to choose from");
  const Room room(input);
  if (!room.HasBlocks(input.sizes.front().blocks)) return NoRoom(input);

  SearchChoice choice;
  choice.states_weighed = CopiesKnown(input.rates) && UpdatesKnown(input.rates);
  if (CopiesKnown(input.rates))
    choice.blocks_gain = GainOfBlocks(input.model, input.rates, input.bytes);
  if (choice.states_weighed)
    choice.states_gain = GainOfStates(input.model, input.rates, input.bytes, input.ranks);

  std::optional<Share> best;
  for (const RcacheSize& size : input.sizes) {
    if (!room.HasBlocks(size.blocks)) break;
    const uint64_t most = room.UploadsIn(room.LeftBy(size.blocks));
    for (Tally tally(input, size);; tally.UploadNext()) {
      if (const Share share = tally.share(); !best || IsBetter(share, *best)) best = share;
      ++choice.tried;
      if (tally.share().uploads == most) break;
    }
  }

  choice.best = *best;
  choice.greedy =
      Greedy(input, room, choice.states_weighed && choice.states_gain > choice.blocks_gain);
  choice.left_bytes = room.LeftBy(best->blocks) - best->states_bytes;
  return choice;
}

}  // namespace tidepool::trainer
