#include "trainer/layout/build_layout.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tidepool::trainer {
namespace {

constexpr uint64_t kElementsMax = uint64_t{1} << 48;  // of one parameter: 1 PiB of fp32

// One parameter on its way into a chunk.
struct Item {
  uint32_t note;
  uint64_t elements;
};

Result<uint64_t> ElementsOf(const ParameterNote& note) {
  uint64_t count = 1;
  for (const uint64_t dim : note.dims) {
    if (dim == 0 || dim > kElementsMax / count) {
      return Status(ErrorId::kUsageError, "parameter " + note.name + " has an extent of " +
                                              std::to_string(dim) + ", which gives no usable size");
    }
    count *= dim;
  }
  return count;
}

// Parameters of one kind, trained or frozen, by data group.
struct Sorted {
  std::vector<std::vector<Item>> multi_use, listed, packed;
};

Status CheckGroups(const LayoutOptions& options, const std::vector<std::vector<Rank>>& groups) {
  if (options.world == 0) return Status(ErrorId::kUsageError, "a job needs at least one rank");

  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<Rank>& members = groups[g];
    const bool ascending = std::adjacent_find(members.begin(), members.end(), [](Rank a, Rank b) {
                             return a >= b;
                           }) == members.end();
    if (members.empty() || !ascending || members.back() >= options.world) {
      return Status(ErrorId::kUsageError,
                    "data group " + std::to_string(g) + " must list ranks below " +
                        std::to_string(options.world) + " in ascending order, at least one");
    }
  }

  return {};
}

class Builder {
 public:
  Builder(std::span<const ParameterNote> notes, const LayoutOptions& options)
      : notes_(notes), options_(options) {
    layout_.dtype = options.dtype;
    layout_.world = options.world;
    layout_.data_groups = options.data_groups;
    if (layout_.data_groups.empty()) {
      layout_.data_groups.emplace_back(options.world);
      std::iota(layout_.data_groups[0].begin(), layout_.data_groups[0].end(), 0);
    }
    align_ = ShardAlignElements(options.dtype);
  }

  Result<ChunkLayout> Build() {
    TP_RETURN_IF_ERROR(CheckGroups(options_, layout_.data_groups));
    TP_RETURN_IF_ERROR(Sort());
    TP_RETURN_IF_ERROR(ChooseSize());
    PackAll(trained_);
    PackAll(frozen_);
    layout_.of_note.resize(notes_.size());
    for (ParameterId id = 0; id < layout_.parameters.size(); ++id)
      layout_.of_note[layout_.parameters[id].note] = id;
    return std::move(layout_);
  }

 private:
  // Puts each note into its group's list: used several times, listed as resident, or packed.
  Status Sort() {
    const size_t groups = layout_.data_groups.size();
    for (Sorted* kind : {&trained_, &frozen_}) {
      for (auto* lists : {&kind->multi_use, &kind->listed, &kind->packed}) lists->resize(groups);
    }

    std::unordered_set<std::string> names,
        resident(options_.resident.begin(), options_.resident.end());
    for (uint32_t i = 0; i < notes_.size(); ++i) {
      const ParameterNote& note = notes_[i];
      if (!names.insert(note.name).second)
        return Status(ErrorId::kUsageError, "two parameters are named " + note.name);
      if (note.data_group >= groups) {
        return Status(ErrorId::kUsageError, "parameter " + note.name + " names data group " +
                                                std::to_string(note.data_group) + " of " +
                                                std::to_string(groups));
      }

      TP_ASSIGN_OR_RETURN(const uint64_t elements, ElementsOf(note));
      Sorted& kind = note.frozen ? frozen_ : trained_;
      auto& list = note.multi_use                 ? kind.multi_use
                   : resident.contains(note.name) ? kind.listed
                                                  : kind.packed;
      list[note.data_group].push_back({i, elements});
    }

    for (const std::string& name : options_.resident) {
      if (!names.contains(name))
        return Status(ErrorId::kUsageError,
                      "no parameter is named " + name + ", which is to be resident");
    }
    return {};
  }

  // Smallest unit of a chunk's size that every group can cut into equal, aligned shards.
  uint64_t Multiple() const {
    uint64_t ranks = 1;
    for (const auto& members : layout_.data_groups)
      ranks = std::lcm(ranks, static_cast<uint64_t>(members.size()));
    return ranks * align_;
  }

  uint64_t PaddedTotal(const std::vector<Item>& items) const {
    uint64_t total = 0;
    for (const Item& item : items) total += RoundUp(item.elements, align_);
    return total;
  }

  // The largest packed parameter of all groups and kinds.
  const Item* Largest() const {
    const Item* largest = nullptr;
    for (const Sorted* kind : {&trained_, &frozen_}) {
      for (const auto& items : kind->packed) {
        for (const Item& item : items) {
          if (largest == nullptr || item.elements > largest->elements) largest = &item;
        }
      }
    }
    return largest;
  }

  bool IsSmall(const std::vector<Item>& packed) const { return PaddedTotal(packed) < size_; }

  Status ChooseSize() {
    const Item* largest = Largest();
    if (largest == nullptr) {
      layout_.choice.reason = "every parameter is resident";
      return {};
    }
    if (options_.chunk_bytes != 0) {
      size_ = RoundUp(DivideUp(options_.chunk_bytes, BytesOf(options_.dtype)), Multiple());
      if (size_ < largest->elements) return TooLarge(*largest);
      layout_.choice.reason = "the size was given";
    } else {
      // A group that fits into one chunk is fused and has no say in the size: leave such groups out
      // and search again.
      size_ = Search(*largest, 0);
      size_ = Search(*largest, size_);
    }
    return MeasureWaste();
  }

  Status TooLarge(const Item& largest) const {
    const uint64_t bytes = RoundUp(largest.elements, Multiple()) * BytesOf(options_.dtype);
    return Status(ErrorId::kParameterTooLarge, "parameter " + notes_[largest.note].name + " has " +
                                                   FormatBytes(bytes) + ", more than a chunk of " +
                                                   FormatBytes(options_.chunk_bytes))
        .Fix("give --chunk-size at least " + std::to_string(bytes) + ", or leave it at auto");
  }

  std::vector<std::vector<uint64_t>> Runs(const Sorted& kind, uint64_t total_min) const {
    std::vector<std::vector<uint64_t>> runs;
    for (const auto& items : kind.packed) {
      if (items.empty() || PaddedTotal(items) < total_min) continue;
      runs.emplace_back();
      for (const Item& item : items) runs.back().push_back(RoundUp(item.elements, align_));
    }
    return runs;
  }

  // Frozen parameters alone have a say where there are any, so that their chunks do not depend on
  // what is trained.
  uint64_t Search(const Item& largest, uint64_t total_min) {
    ChunkSizeSearch search;
    search.runs = Runs(Runs(frozen_, 0).empty() ? trained_ : frozen_, total_min);
    if (search.runs.empty()) return size_;  // every group is small: all of them are fused
    search.multiple = Multiple();
    search.elements_min = largest.elements;
    search.elements_max = options_.chunk_bytes_max / BytesOf(options_.dtype);
    search.chunks_min = 1;

    const uint64_t blocks = std::max<uint32_t>(1, options_.blocks_min);
    if (options_.rcache_block_bytes != 0) {
      const uint64_t most =
          options_.rcache_block_bytes / blocks / kPageBytes * kPageBytes / BytesOf(options_.dtype);
      search.elements_max = std::min(search.elements_max, std::max<uint64_t>(1, most));
    } else {
      search.chunks_min = 4 * blocks;
    }

    layout_.choice = SearchChunkSize(search);
    return layout_.choice.best.elements;
  }

  // What the chosen size wastes over the groups that it really packs.
  Status MeasureWaste() {
    auto runs = Runs(frozen_, size_);
    for (auto& run : Runs(trained_, size_)) runs.push_back(std::move(run));
    if (runs.empty()) {
      layout_.choice.reason += "; every data group is smaller than one chunk and stays resident";
      return {};
    }

    layout_.block_elements = size_;
    layout_.choice.best = TryChunkSize(runs, size_);
    layout_.choice.waste_share =
        static_cast<double>(layout_.choice.best.waste_elements) /
        static_cast<double>(layout_.choice.best.chunks * layout_.choice.best.elements);
    return {};
  }

  void PackAll(const Sorted& kind) {
    for (uint32_t group = 0; group < layout_.data_groups.size(); ++group) PackResident(kind, group);
    for (uint32_t group = 0; group < layout_.data_groups.size(); ++group) {
      if (!IsSmall(kind.packed[group])) Pack(kind.packed[group], group, size_, /*resident=*/false);
    }
  }

  void PackResident(const Sorted& kind, uint32_t group) {
    for (const Item& item : kind.multi_use[group]) {
      Pack({item}, group, item.elements, /*resident=*/true);
      layout_.chunks.back().multi_use = true;
    }
    uint64_t room = size_;
    for (const Item& item : kind.listed[group]) room = std::max(room, item.elements);
    Pack(kind.listed[group], group, room, /*resident=*/true);
    const std::vector<Item>& packed = kind.packed[group];
    if (IsSmall(packed)) Pack(packed, group, PaddedTotal(packed), /*resident=*/true);
  }

  // Greedy: a chunk is closed when the next parameter does not fit (Elixir v2, appendix A.2).
  void Pack(const std::vector<Item>& items, uint32_t group, uint64_t capacity, bool resident) {
    uint64_t room = 0;
    for (const Item& item : items) {
      if (item.elements > room) {
        Close();
        Open(group, capacity, resident);
        layout_.chunks.back().frozen = notes_[item.note].frozen;
        room = capacity;
      }

      Place(item, capacity - room);
      room -= std::min(room, RoundUp(item.elements, align_));
    }
    Close();
  }

  void Open(uint32_t group, uint64_t capacity, bool resident) {
    ChunkPlace chunk;
    chunk.elements = capacity;
    chunk.data_group = group;
    chunk.resident = resident;
    chunk.first_parameter = static_cast<ParameterId>(layout_.parameters.size());
    layout_.chunks.push_back(chunk);
    open_ = true;
  }

  // Trims a resident chunk to what it holds.
  void Close() {
    if (!open_) return;
    open_ = false;
    ChunkPlace& chunk = layout_.chunks.back();
    if (!chunk.resident) return;
    const ParameterPlace& last = layout_.parameters.back();
    chunk.elements = RoundUp(last.element_begin + last.element_count,
                             layout_.data_groups[chunk.data_group].size() * align_);
  }

  void Place(const Item& item, uint64_t begin) {
    const ParameterNote& note = notes_[item.note];
    ParameterPlace place;
    place.name = note.name;
    place.dims = note.dims;
    place.optimizer_group = note.optimizer_group;
    place.multi_use = note.multi_use;
    place.chunk = static_cast<ChunkId>(layout_.chunks.size() - 1);
    place.element_begin = begin;
    place.element_count = item.elements;
    place.note = item.note;
    layout_.parameters.push_back(std::move(place));

    ChunkPlace& chunk = layout_.chunks.back();
    ++chunk.parameter_count;
    chunk.used_elements += item.elements;
  }

  std::span<const ParameterNote> notes_;
  const LayoutOptions& options_;
  ChunkLayout layout_;
  uint64_t align_ = 16;
  uint64_t size_ = 0;  // of a packed chunk
  bool open_ = false;
  Sorted trained_, frozen_;
};

}  // namespace

Result<ChunkLayout> BuildLayout(std::span<const ParameterNote> notes,
                                const LayoutOptions& options) {
  if (notes.empty())
    return Status(ErrorId::kUsageError, "a model without parameters has no layout");
  return Builder(notes, options).Build();
}

}  // namespace tidepool::trainer
