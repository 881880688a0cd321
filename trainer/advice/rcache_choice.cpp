#include "trainer/advice/rcache_choice.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "base/text/plural.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr double kArithmeticPerByte = 32, kNoticedShare = 0.01;  // of the host

std::string Number(double value, const char* form) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), form, value);
  return text.data();
}

// Bytes of a rank's states of the chunk in the pool, which would move to the device.
uint64_t StatesBytes(const ChoiceTask& task, ChunkId chunk) {
  const OptimizerSpec& spec = task.optimizer;
  const uint64_t elements = task.layout->ShardElements(chunk);
  const bool fp32 = task.layout->chunks[chunk].dtype == DType::kF32;
  const uint64_t moments = uint64_t{NeedsMomentum(spec)} + uint64_t{NeedsVariance(spec)};
  const uint64_t gradient = fp32 || task.micro_batches > 1 ? 4 : 2;
  const StateForm form = fp32 ? StateForm::kF32 : spec.states;
  return MasterBytes(form, elements) + moments * MomentBytes(form, elements) +
         (fp32 ? 0 : 2 * elements) + gradient * elements;
}

// evictable[c]: the rank has chunk c, and it needs a block.
std::vector<bool> EvictableOf(const ChunkLayout& layout, Rank rank) {
  std::vector<bool> mask = EvictableMask(layout);
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk)
    mask[chunk] = mask[chunk] && layout.IsMember(chunk, rank);
  return mask;
}

SearchInput InputOf(const ChoiceTask& task, const AccessSchedule& order) {
  const ChunkLayout& layout = *task.layout;
  SearchInput input;
  input.ranks = layout.world;
  input.bytes.compute = BytesOf(layout.dtype);
  input.block_bytes = layout.BlockBytes();
  if (task.rates) input.rates = task.rates->rates;

  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    const ChunkPlace& place = layout.chunks[chunk];
    // Ranks that do not have this chunk have another one like it, which is not counted itself.
    const uint64_t alike =
        layout.IsMember(chunk, task.rank) ? layout.world / layout.ShardCount(chunk) : 0;
    input.chunks.push_back({alike * layout.ChunkBytes(chunk) / input.bytes.compute,
                            place.frozen ? 0 : StatesBytes(task, chunk), !place.frozen});
  }

  const double elements = static_cast<double>(layout.ShardElements(0));
  input.bytes.states = static_cast<double>(input.chunks[0].states_bytes) / elements -
                       static_cast<double>(input.bytes.compute);
  input.sizes = SizesOf(order, EvictableOf(layout, task.rank));
  return input;
}

// Adds the largest size that fits, which the sizes of a long order may be far from.
void AddLargestThatFits(const ChoiceTask& task, const AccessSchedule& order, SearchInput* input) {
  if (input->block_bytes == 0) return;
  const uint64_t blocks = input->allowed_bytes / input->block_bytes;
  const auto behind =
      std::find_if(input->sizes.begin(), input->sizes.end(),
                   [blocks](const RcacheSize& size) { return size.blocks >= blocks; });
  const bool is_new =
      behind != input->sizes.begin() && behind != input->sizes.end() && behind->blocks != blocks;
  if (!is_new) return;
  input->sizes.insert(behind, SizeOf(order, EvictableOf(*task.layout, task.rank), blocks));
}

std::string RoomText(const RcacheChoice& c) {
  if (c.limit)
    return c.limit->origin + ", " + FormatBytes(c.limit->bytes) + " with resident chunks";
  const auto part = [](const char* what, uint64_t bytes) {
    return bytes == 0 ? std::string() : std::string(", ") + what + " " + FormatBytes(bytes);
  };
  return FormatBytes(c.room.capacity) + " (" + c.room_origin + "): activations " +
         FormatBytes(c.room.activations) + ", counted x 1.25" + part("tokens", c.room.buffers) +
         part("resident chunks", c.room.resident) + part("states of first chunks", c.room.states) +
         part("one chunk that stands in after a failure", c.room.spare) +
         part("taken before", c.room.taken) + "; of the rest 5 % are kept back";
}

std::string WhyNoStates(const ChoiceTask& task) {
  if (!task.device_updates) return "the host is the device";
  if (!task.rates)
    return task.why_no_rates.empty() ? "no rates were given (--rates FILE)" : task.why_no_rates;
  return task.rates->file + " has no rates of updates";
}

std::string StatesText(const RcacheChoice& c) {
  if (!c.with_states) return "states on the device are not weighed: " + c.why_no_states;
  const SearchChoice& w = *c.with_states;
  const auto ms = [](double seconds) { return Number(seconds * 1e3, "%.1f ms"); };

  const std::string gains = "10^9 bytes of blocks save " + ms(w.blocks_gain) +
                            " a step, of states on the device " + ms(w.states_gain) + " (" +
                            c.rates->origin + ")";

  if (w.best.uploads == 0) return gains + "; no states there would do better";
  return gains + "; " + Counted(w.best.blocks, "block") + " beside the states of the first " +
         (w.best.uploads == 1 ? std::string("chunk") : std::to_string(w.best.uploads) + " chunks") +
         " would take " + ms(w.best.seconds) + " of copies and updates instead of " +
         ms(c.share.seconds) +
         "; not applied: --gpu-states puts states there, but their gradients and weights still "
         "pass through the host";
}

std::string DynamicText(const RcacheChoice& c, const std::string& indent) {
  if (c.dynamic_blocks == 0) return {};
  return "up to " + Counted(c.dynamic_blocks, "block") +
         " at moments at which operators leave room; the first step has a fifth of the memory for "
         "chunks, and measures them\n" +
         indent;
}

void WriteRoom(const RcacheChoice& c, JsonWriter* json) {
  if (c.limit) {
    json->Key("room").BeginObject().Field("origin", c.limit->origin);
    json->Field("capacity_bytes", c.limit->bytes).Field("allowed_bytes", c.allowed_bytes);
    json->Field("left_bytes", c.left_bytes).EndObject();
    return;
  }

  json->Key("room")
      .BeginObject()
      .Field("origin", c.room_origin)
      .Field("capacity_bytes", c.room.capacity);
  json->Field("taken_bytes", c.room.taken)
      .Field("spare_bytes", c.room.spare)
      .Field("resident_bytes", c.room.resident)
      .Field("states_bytes", c.room.states);
  json->Field("buffer_bytes", c.room.buffers).Field("activation_bytes", c.room.activations);
  json->Field("allowed_bytes", c.allowed_bytes).Field("left_bytes", c.left_bytes).EndObject();
}

Status NothingFits(const ChoiceTask& task, const RcacheChoice& choice, Status what) {
  return std::move(what)
      .Where(choice.limit ? "--plan auto" : "--rcache auto")
      .Why("of " + RoomText(choice))
      .Fix(
          "take --checkpoint-activations where it is off, a smaller --batch or --chunk-size; or "
          "try "
          "the smallest size itself, with less kept back: --rcache " +
          std::to_string(task.layout->RcacheBytes(task.rank, choice.smallest_blocks)));
}

}  // namespace

Result<RcacheChoice> ChooseRcache(const ChoiceTask& task) {
  const ChunkLayout& layout = *task.layout;
  RcacheChoice choice;

  choice.room = task.room;
  choice.room.resident = layout.ResidentBytes(task.rank);
  choice.room.buffers = task.profile->buffer_bytes;
  choice.room.activations = task.profile->activation_bytes;
  choice.room_origin = task.room_origin;
  choice.rates = task.rates;
  choice.ranks = layout.world;
  choice.block_bytes = layout.BlockBytes();
  choice.limit = task.limit;
  choice.allowed_bytes = AllowedBytes(choice.room);
  if (task.limit)
    choice.allowed_bytes = task.limit->bytes - std::min(task.limit->bytes, choice.room.resident);

  const AccessSchedule order =
      ForeseeOrder(task.profile->trace, layout, task.rank, task.micro_batches);
  SearchInput input = InputOf(task, order);
  input.allowed_bytes = choice.allowed_bytes;
  AddLargestThatFits(task, order, &input);
  choice.smallest_blocks = input.sizes.front().blocks;
  choice.most_blocks = input.sizes.back().blocks;

  const Result<SearchChoice> all = Search(input);
  if (!all.ok() || (choice.allowed_bytes == 0 && !task.limit)) {
    return NothingFits(task, choice,
                       all.ok() ? Status(ErrorId::kRcacheTooSmall,
                                         "nothing of the device can be given to the rCache")
                                : Status(all.status()));
  }

  if (all.value().states_weighed && task.device_updates) {
    choice.with_states = all.value();
  } else {
    choice.why_no_states = WhyNoStates(task);
  }

  const Rates rates = input.rates;
  input.rates = {};  // without them the search considers no states on the device
  const Result<SearchChoice> hosted = Search(input);
  if (!hosted.ok()) return hosted.status();
  input.rates = rates;

  const auto chosen = std::find_if(
      input.sizes.begin(), input.sizes.end(),
      [&](const RcacheSize& size) { return size.blocks == hosted.value().best.blocks; });
  choice.share = CostOf(input, *chosen, 0);
  choice.left_bytes = hosted.value().left_bytes;
  return choice;
}

namespace {

// Bytes that one rank moves in a step, by size of the rCache.
class StepBytes {
 public:
  explicit StepBytes(const ChoiceTask& task)
      : input_(InputOf(
            task, ForeseeOrder(task.profile->trace, *task.layout, task.rank, task.micro_batches))) {
  }

  const std::vector<RcacheSize>& sizes() const { return input_.sizes; }
  double Of(const RcacheSize& size) const {
    const Share share = CostOf(input_, size, 0);
    return static_cast<double>(share.bytes_up + share.bytes_down) / input_.ranks;
  }
  double Least() const { return Of(input_.sizes.back()); }

 private:
  const SearchInput input_;
};

double ArithmeticOf(const ChoiceTask& task) {
  return task.profile->arithmetic * task.micro_batches;
}

}  // namespace

uint64_t ChooseHostBlocks(const ChoiceTask& task) {
  const StepBytes moved(task);
  const double least = moved.Least();
  for (const RcacheSize& size : moved.sizes()) {
    if ((moved.Of(size) - least) * kArithmeticPerByte <= ArithmeticOf(task) * kNoticedShare)
      return size.blocks;
  }
  return moved.sizes().back().blocks;
}

SmallRcache SmallestRcache(const ChoiceTask& task, bool on_host, double loss_most) {
  const StepBytes moved(task);
  const double least = moved.Least(), most_blocks_cost = std::max(least, 1.0);
  const double step =
      on_host ? ArithmeticOf(task) / kArithmeticPerByte + most_blocks_cost : most_blocks_cost;

  SmallRcache small{.most_blocks = moved.sizes().back().blocks};
  for (const RcacheSize& size : moved.sizes()) {
    small.blocks = size.blocks;
    small.loss = (moved.Of(size) - least) / step;
    if (small.loss < loss_most) break;
  }
  return small;
}

std::string DescribeChoice(const RcacheChoice& c) {
  const std::string indent = "          ";
  return "chosen    " + Counted(c.share.blocks, "block") + ": of " + RoomText(c) +
         ", which leaves " + FormatBytes(c.allowed_bytes) + " for blocks, " +
         FormatBytes(c.left_bytes) + " unused\n" + indent + "this order of use needs " +
         Counted(c.smallest_blocks, "block") + " at least, and more than " +
         std::to_string(c.most_blocks) + " save nothing; a step moves " +
         FormatBytes(c.bytes_up()) + " to each rank and " + FormatBytes(c.bytes_down()) +
         " from it\n" + indent + DynamicText(c, indent) + StatesText(c) + "\n";
}

void WriteChoice(const RcacheChoice& c, JsonWriter* json) {
  json->BeginObject()
      .Field("blocks", c.share.blocks)
      .Field("smallest_blocks", c.smallest_blocks)
      .Field("most_blocks", c.most_blocks);
  if (c.dynamic_blocks > 0) json->Field("dynamic_blocks", c.dynamic_blocks);
  WriteRoom(c, json);

  json->Field("step_bytes_to_rank", c.bytes_up()).Field("step_bytes_from_rank", c.bytes_down());
  if (c.rates) {
    json->Key("rates").BeginObject().Field("file", c.rates->file).Field("origin", c.rates->origin);
    json->Field("to_device_gb_per_s", c.rates->rates.to_device)
        .Field("from_device_gb_per_s", c.rates->rates.from_device);
    json->Field("host_update_g_elements_per_s", c.rates->rates.host_update);
    json->Field("device_update_g_elements_per_s", c.rates->rates.device_update).EndObject();
    json->Field("step_seconds", c.share.seconds);
  }

  json->Key("states_on_device")
      .BeginObject()
      .Field("weighed", c.with_states.has_value())
      .Field("applied", false);

  if (c.with_states) {
    const Share& best = c.with_states->best;
    json->Field("chunks", best.uploads)
        .Field("bytes", best.states_bytes)
        .Field("blocks", best.blocks)
        .Field("step_seconds", best.seconds);
    json->Field("blocks_gain", c.with_states->blocks_gain)
        .Field("states_gain", c.with_states->states_gain);
  } else {
    json->Field("why_not", c.why_no_states);
  }

  json->EndObject().EndObject();
}

}  // namespace tidepool::trainer
