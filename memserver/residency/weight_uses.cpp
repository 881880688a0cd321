#include "memserver/residency/weight_uses.h"

#include <algorithm>
#include <utility>

namespace tidepool::memserver {

WeightUses::WeightUses(uint32_t ranks, uint32_t uses_max)
    : ranks_(ranks), uses_max_(std::min(uses_max, kUsesMax)) {
  for (OfRank& each : ranks_) {
    each.last.reserve(uses_max_);
    each.open.reserve(uses_max_);
  }
}

void WeightUses::Note(Rank rank, ChunkId chunk, Version version) {
  ++notes_;
  OfRank& of = ranks_[rank];
  if (version != of.version) {
    if (!of.open.empty()) std::swap(of.last, of.open);
    of.open.clear();
    of.version = version;
    of.place = 0;
  }

  if (of.open.size() < uses_max_) of.open.push_back(chunk);
  const auto found =
      std::find(of.last.begin() + static_cast<std::ptrdiff_t>(of.place), of.last.end(), chunk);
  if (found != of.last.end()) of.place = static_cast<size_t>(found - of.last.begin()) + 1;
}

uint64_t WeightUses::UntilNext(ChunkId chunk) const {
  uint64_t least = kNever;
  for (const OfRank& of : ranks_) {
    const auto place = of.last.begin() + static_cast<std::ptrdiff_t>(of.place);

    if (const auto found = std::find(place, of.last.end(), chunk); found != of.last.end()) {
      least = std::min(least, static_cast<uint64_t>(found - place));
    } else if (const auto round = std::find(of.last.begin(), place, chunk); round != place) {
      least = std::min(least,
                       static_cast<uint64_t>((of.last.end() - place) + (round - of.last.begin())));
    }
  }
  return least;
}

std::optional<ChunkId> WeightUses::Next(Rank rank, uint32_t ahead) const {
  const OfRank& of = ranks_[rank];
  if (ahead >= of.last.size()) return std::nullopt;
  return of.last[(of.place + ahead) % of.last.size()];
}

}  // namespace tidepool::memserver
