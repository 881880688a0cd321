#include "trainer/layout/build_layout.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "trainer/layout/layout_items.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kShardAlignBytes = 64;

// Sizes to pack, and their unit: elements of their one dtype, or bytes.
struct Runs {
  std::vector<std::vector<uint64_t>> sizes;
  uint64_t unit_bytes = 0;

  const char* unit() const { return unit_bytes == 1 ? "bytes" : "elements"; }
};

class Builder {
 public:
  Builder(std::span<const ParameterNote> notes, const LayoutOptions& options)
      : notes_(notes), options_(options) {
    layout_.world = options.world;
    layout_.data_groups = options.data_groups;
    if (layout_.data_groups.empty()) {
      layout_.data_groups.emplace_back(options.world);
      std::iota(layout_.data_groups[0].begin(), layout_.data_groups[0].end(), 0);
    }
    for (Kind* kind : {&trained_, &frozen_}) {
      for (size_t i = 0; i < kind->size(); ++i) (*kind)[i].dtype = static_cast<DType>(i);
    }
  }

  Result<ChunkLayout> Build() {
    TP_RETURN_IF_ERROR(CheckGroups(options_.world, layout_.data_groups));
    TP_RETURN_IF_ERROR(Sort());
    TP_RETURN_IF_ERROR(ChooseSize());
    PackAll(trained_, /*frozen=*/false);
    PackAll(frozen_, /*frozen=*/true);
    layout_.of_note.resize(notes_.size());
    for (ParameterId id = 0; id < layout_.parameters.size(); ++id)
      layout_.of_note[layout_.parameters[id].note] = id;
    return std::move(layout_);
  }

 private:
  Status CheckDType(const ParameterNote& note, DType dtype) const {
    if (note.frozen || dtype == DType::kF32 || dtype == options_.dtype) return {};
    return Status(ErrorId::kUsageError, "the trained parameter " + note.name + " is " +
                                            NameOf(dtype) + " in a job of " +
                                            NameOf(options_.dtype));
  }

  // Adds each note to its group's list: used more than once, resident, or packed.
  Status Sort() {
    const size_t groups = layout_.data_groups.size();
    for (Kind* kind : {&trained_, &frozen_}) {
      for (Sorted& sorted : *kind) {
        for (auto* lists : {&sorted.multi_use, &sorted.listed, &sorted.packed})
          lists->resize(groups);
      }
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

      const DType dtype = note.dtype.value_or(options_.dtype);
      TP_RETURN_IF_ERROR(CheckDType(note, dtype));
      if (!note.frozen && dtype != DType::kF32) layout_.dtype = dtype;

      TP_ASSIGN_OR_RETURN(const uint64_t elements, ElementsOf(note.name, note.dims));
      Sorted& kind = (note.frozen ? frozen_ : trained_)[static_cast<size_t>(dtype)];
      auto& list = note.multi_use                 ? kind.multi_use
                   : resident.contains(note.name) ? kind.listed
                                                  : kind.packed;
      list[note.data_group].push_back({i, elements, note.unit});
    }

    SortByUnit();

    for (const std::string& name : options_.resident) {
      if (!names.contains(name))
        return Status(ErrorId::kUsageError,
                      "no parameter is named " + name + ", which is to be resident");
    }
    return {};
  }

  void SortByUnit() {
    for (Kind* kind : {&trained_, &frozen_}) {
      for (Sorted& sorted : *kind) {
        for (auto& items : sorted.packed) {
          std::stable_sort(items.begin(), items.end(),
                           [](const Item& a, const Item& b) { return a.unit < b.unit; });
        }
      }
    }
  }

  // Smallest multiple of chunk bytes that every group can cut into equal, aligned shards.
  uint64_t MultipleBytes() const {
    uint64_t ranks = 1;
    for (const auto& members : layout_.data_groups)
      ranks = std::lcm(ranks, static_cast<uint64_t>(members.size()));
    return ranks * kShardAlignBytes;
  }

  static uint64_t PaddedBytes(const Item& item, const Sorted& of) {
    return RoundUp(item.elements * of.element_bytes(), kShardAlignBytes);
  }
  static uint64_t PaddedTotal(const std::vector<Item>& items, const Sorted& of) {
    uint64_t total = 0;
    for (const Item& item : items) total += PaddedBytes(item, of);
    return total;
  }

  // The largest packed parameter of all groups and kinds; sets `largest_bytes_`.
  const Item* Largest() {
    const Item* largest = nullptr;
    const auto compare = [&](const std::vector<Item>& items, const Sorted& of) {
      for (const Item& item : items) {
        const uint64_t bytes = item.elements * of.element_bytes();
        if (bytes > largest_bytes_) largest = &item;
        largest_bytes_ = std::max(largest_bytes_, bytes);
      }
    };

    for (const Kind* kind : {&trained_, &frozen_}) {
      for (const Sorted& sorted : *kind) {
        for (const auto& items : sorted.packed) compare(items, sorted);
      }
    }
    return largest;
  }

  bool IsSmall(const std::vector<Item>& packed, const Sorted& of) const {
    return packed.empty() || (options_.fuses_small && PaddedTotal(packed, of) < size_);
  }

  Status ChooseSize() {
    const Item* largest = Largest();
    if (largest == nullptr) {
      layout_.choice.reason = "every parameter is resident";
      return {};
    }
    if (options_.chunk_bytes != 0) {
      size_ = RoundUp(options_.chunk_bytes, MultipleBytes());
      if (size_ < largest_bytes_) return TooLarge(*largest);
      layout_.choice.reason = "the size was given";
    } else {
      // A group that fits into one chunk is fused and does not affect the size: leave such groups
      // out and search again.
      size_ = Search(0);
      if (options_.fuses_small) size_ = Search(size_);
    }
    MeasureWaste();
    return {};
  }

  Status TooLarge(const Item& largest) const {
    const uint64_t bytes = RoundUp(largest_bytes_, MultipleBytes());
    return Status(ErrorId::kParameterTooLarge, "parameter " + notes_[largest.note].name + " has " +
                                                   FormatBytes(bytes) + ", more than a chunk of " +
                                                   FormatBytes(options_.chunk_bytes))
        .Fix("give --chunk-size at least " + std::to_string(bytes) + ", or leave it at auto");
  }

  // Adds the packed parameters of one kind, of all groups and dtypes with at least total_min bytes;
  // sizes are in bytes here.
  static void AddRuns(const Kind& kind, uint64_t total_min, Runs* runs) {
    for (const Sorted& sorted : kind) {
      for (const auto& items : sorted.packed) {
        if (items.empty() || PaddedTotal(items, sorted) < total_min) continue;
        for (size_t i = 0; i < items.size(); ++i) {
          if (i == 0 || items[i].unit != items[i - 1].unit) runs->sizes.emplace_back();
          runs->sizes.back().push_back(PaddedBytes(items[i], sorted));
        }

        const bool alike = runs->unit_bytes == 0 || runs->unit_bytes == sorted.element_bytes();
        runs->unit_bytes = alike ? sorted.element_bytes() : 1;
      }
    }
  }

  static void CountUnits(Runs* runs) {
    for (auto& run : runs->sizes) {
      for (uint64_t& size : run) size /= runs->unit_bytes;
    }
  }

  // If there are frozen parameters, only they affect the size, so that their chunks do not depend
  // on what is trained. Returns bytes.
  uint64_t Search(uint64_t total_min) {
    Runs of_frozen, runs;
    AddRuns(frozen_, 0, &of_frozen);
    AddRuns(of_frozen.sizes.empty() ? trained_ : frozen_, total_min, &runs);
    if (runs.sizes.empty()) return size_;  // every group is small: all are fused
    CountUnits(&runs);

    ChunkSizeSearch search;
    search.runs = std::move(runs.sizes);
    search.unit = runs.unit();
    search.multiple = MultipleBytes() / runs.unit_bytes;
    search.elements_min = DivideUp(largest_bytes_, runs.unit_bytes);
    search.elements_max = options_.chunk_bytes_max / runs.unit_bytes;
    search.chunks_min = 1;

    const uint64_t blocks = std::max<uint32_t>(1, options_.blocks_min);
    if (options_.rcache_block_bytes != 0) {
      const uint64_t most =
          options_.rcache_block_bytes / blocks / kPageBytes * kPageBytes / runs.unit_bytes;
      search.elements_max = std::min(search.elements_max, std::max<uint64_t>(1, most));
    } else {
      search.chunks_min = 4 * blocks;
    }

    layout_.choice = SearchChunkSize(search);
    return layout_.choice.best.elements * runs.unit_bytes;
  }

  // Measures the waste of the chosen size over the groups that it really packs.
  void MeasureWaste() {
    Runs runs;
    for (const Kind* kind : {&frozen_, &trained_})
      AddRuns(*kind, options_.fuses_small ? size_ : 0, &runs);
    if (runs.sizes.empty()) {
      layout_.choice.reason += "; every data group is smaller than one chunk and stays resident";
      return;
    }

    CountUnits(&runs);
    layout_.block_bytes = size_;
    layout_.choice.best = TryChunkSize(runs.sizes, size_ / runs.unit_bytes);
    layout_.choice.waste_share =
        static_cast<double>(layout_.choice.best.waste_elements) /
        static_cast<double>(layout_.choice.best.chunks * layout_.choice.best.elements);
  }

  void PackAll(const Kind& kind, bool frozen) {
    packing_frozen_ = frozen;
    for (const Sorted& sorted : kind) {
      for (uint32_t group = 0; group < layout_.data_groups.size(); ++group)
        PackResident(sorted, group);
      for (uint32_t group = 0; group < layout_.data_groups.size(); ++group) {
        if (!IsSmall(sorted.packed[group], sorted))
          Pack(sorted.packed[group], {sorted.dtype, group, size_, /*resident=*/false});
      }
    }
  }

  void PackResident(const Sorted& sorted, uint32_t group) {
    Room room{sorted.dtype, group, 0, /*resident=*/true};
    for (const Item& item : sorted.multi_use[group]) {
      room.bytes = item.elements * sorted.element_bytes();
      Pack({item}, room);
      layout_.chunks.back().multi_use = true;
    }

    room.bytes = size_;
    for (const Item& item : sorted.listed[group])
      room.bytes = std::max(room.bytes, item.elements * sorted.element_bytes());
    Pack(sorted.listed[group], room);

    const std::vector<Item>& packed = sorted.packed[group];
    room.bytes = PaddedTotal(packed, sorted);
    if (IsSmall(packed, sorted)) Pack(packed, room);
  }

  // Properties of the next chunks.
  struct Room {
    DType dtype;
    uint32_t group;
    uint64_t bytes;
    bool resident;
  };

  // Greedy: closes a chunk when the next parameter does not fit (Elixir v2, appendix A.2).
  void Pack(const std::vector<Item>& items, const Room& chunks) {
    const uint64_t capacity = chunks.bytes / BytesOf(chunks.dtype);
    uint64_t room = 0;
    uint32_t unit = 0;

    for (const Item& item : items) {
      const bool other_unit = !chunks.resident && item.unit != unit;
      if (item.elements > room || other_unit) {
        Close();
        Open(chunks, capacity);
        room = capacity;
        unit = chunks.resident ? 0 : item.unit;
        layout_.chunks.back().unit = unit;
      }

      Place(item, capacity - room);
      room -= std::min(room, RoundUp(item.elements, ShardAlignElements(chunks.dtype)));
    }
    Close();
  }

  void Open(const Room& room, uint64_t capacity) {
    ChunkPlace chunk;
    chunk.dtype = room.dtype;
    chunk.elements = capacity;
    chunk.data_group = room.group;
    chunk.resident = room.resident;
    chunk.frozen = packing_frozen_;
    chunk.first_parameter = static_cast<ParameterId>(layout_.parameters.size());
    layout_.chunks.push_back(chunk);
    open_ = true;
  }

  // Trims a resident chunk, and one of a unit, to its content.
  void Close() {
    if (!open_) return;
    open_ = false;
    ChunkPlace& chunk = layout_.chunks.back();
    if (!chunk.resident && chunk.unit == 0) return;
    const ParameterPlace& last = layout_.parameters.back();
    const uint64_t members = layout_.data_groups[chunk.data_group].size();
    chunk.elements =
        RoundUp(last.element_begin + last.element_count, members * ShardAlignElements(chunk.dtype));
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
  uint64_t size_ = 0;  // bytes of a packed chunk
  uint64_t largest_bytes_ = 0;
  bool open_ = false, packing_frozen_ = false;
  Kind trained_, frozen_;
};

}  // namespace

Result<ChunkLayout> BuildLayout(std::span<const ParameterNote> notes,
                                const LayoutOptions& options) {
  if (notes.empty())
    return Status(ErrorId::kUsageError, "a model without parameters has no layout");
  return Builder(notes, options).Build();
}

}  // namespace tidepool::trainer
