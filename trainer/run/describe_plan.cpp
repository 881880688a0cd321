#include "trainer/run/describe_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/text/json_writer.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/moe_text.h"
#include "trainer/run/describe_groups.h"
#include "trainer/model/tiles/tile_places.h"

namespace tidepool::trainer {
namespace {

std::string Percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

std::string PerParameter(const client::StateBytes& states, uint64_t parameters) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f",
                static_cast<double>(states.total()) / static_cast<double>(parameters));
  return text.data();
}

// Writes lines of "label     value"; a label takes ten columns.
class Lines {
 public:
  void Add(const std::string& label, const std::string& value) {
    text_ += label + std::string(10 - std::min<size_t>(label.size(), 9), ' ') + value + "\n";
  }
  void AddText(const std::string& lines) { text_ += lines; }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void AddModel(const RunPlan& plan, Lines* lines) {
  const MemoryEstimate& m = plan.memory;
  lines->Add("model", plan.shape.name + ": " + FormatCount(m.parameters) + " parameters, " +
                          Counted(plan.shape.layers, "layer") + " x " +
                          std::to_string(plan.shape.hidden) + ", " + NameOf(plan.layout.dtype));
  if (HasExperts(plan.shape)) {
    // Six floating-point operations per weight and token.
    const double weights = GptFlopsPerToken(plan.shape, 0) / 6;
    lines->Add("experts", MoeText(plan.shape) + "; a token is multiplied with " +
                              FormatCount(static_cast<uint64_t>(weights)) + " parameters");
  }

  if (plan.lora.on()) {
    lines->Add("adapters", FormatCount(m.trained_parameters) + " parameters, of rank " +
                               std::to_string(plan.lora.rank) + " beside " +
                               TargetsText(plan.lora) + "; nothing else is trained");
  }
}

std::string DescribeStages(const RunPlan& plan) {
  const StagePlan& stages = *plan.stages;
  std::string layers;
  for (uint32_t stage = 0; stage < stages.stages(); ++stage) {
    const uint32_t first = stage == 0 ? 0 : stages.cuts.ends[stage - 1];
    layers += (stage == 0 ? "" : " + ") + std::to_string(stages.cuts.ends[stage] - first);
    if (plan.layout.world == 1) continue;
    std::string ranks;
    for (const Rank rank : stages.cuts.RanksOf(stage))
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    layers += (stages.cuts.columns > 1 ? " (ranks " : " (rank ") + ranks + ")";
  }

  return "stages of " + layers +
         " layers; micro-batches of each: " + std::to_string(stages.micro_batches) +
         "; sums of gradients take " + FormatBytes(stages.tail_bytes) + " of the rCache" +
         (plan.layout.world > 1 ? " of rank " + std::to_string(stages.rank) : "") + ", and " +
         FormatBytes(stages.sum_bytes) + " are handed in a step";
}

void AddTiles(const GptShape& shape, DType dtype, Lines* lines) {
  if (shape.tile_elements == 0) return;
  uint64_t tiles = 0, layers = 0;
  for (const ParameterNote& note : GptParameters(shape)) {
    const TilePlace place = PlaceOfTile(note.name, shape);
    if (place.whole == note.name) continue;
    ++tiles;
    if (place.begin == 0) ++layers;
  }

  lines->Add("tiles", std::to_string(layers) + " linear layers are cut into " +
                          std::to_string(tiles) + " parameters of at most " +
                          FormatBytes(shape.tile_elements * BytesOf(dtype)));
}

void AddRcache(const RunPlan& plan, Lines* lines) {
  const MemoryEstimate& m = plan.memory;
  lines->Add("chunks", std::to_string(plan.layout.chunks.size()) + ", of " +
                           FormatBytes(plan.rcache.block_bytes) + " (padding " +
                           FormatBytes(m.padding_bytes) + " in all); " + plan.layout.choice.reason);

  lines->Add("rcache", FormatBytes(plan.rcache.bytes) +
                           " a rank: " + std::to_string(plan.rcache.blocks) +
                           " blocks = " + Percent(plan.rcache.fraction()) +
                           " of the non-resident parameters, beside " +
                           FormatBytes(plan.rcache.resident_bytes) + " always resident (" +
                           Percent(m.resident_share) + " of all)");
  if (plan.way) lines->AddText(DescribePlanChoice(*plan.way));
  if (plan.choice) lines->AddText(DescribeChoice(*plan.choice));
  if (plan.stages) lines->Add("pipeline", DescribeStages(plan));

  if (plan.layout.world > 1) {
    lines->Add("exchange",
               "none beside the rCache between ranks of one machine; over several machines " +
                   FormatBytes(m.parts_bytes) +
                   " of host memory a rank, and where GPUs exchange through host memory " +
                   FormatBytes(m.staging_bytes) + " more");
  }
}

void AddPool(const RunPlan& plan, const client::StateBytes& states, Lines* lines) {
  lines->Add("optimizer", std::string(NameOf(plan.spec.optimizer.rule)) + ", states " +
                              NameOf(plan.spec.optimizer.states) + ": " +
                              PerParameter(states, plan.memory.trained_parameters) +
                              " bytes of the pool a parameter");

  lines->Add("host", FormatBytes(states.total()) + " of the pool: master " +
                         FormatBytes(states.master) + ", moments " +
                         FormatBytes(states.momentum + states.variance) + ", 16-bit copy " +
                         FormatBytes(states.param16) + ", gradients " +
                         FormatBytes(states.gradient + states.staging) + ", records " +
                         FormatBytes(states.records));

  if (plan.lora.on()) {
    lines->Add("base", FormatBytes(plan.memory.frozen) + " of the pool in " +
                           std::to_string(plan.spec.frozen.size()) +
                           " frozen chunks, once for all jobs of yours over it");
  }
}

void AddNvme(const RunPlan& plan, Lines* lines) {
  if (!client::MaySpill(plan.spec)) return;
  const uint64_t host = client::HostStateBytesOf(plan.spec, 0).total();
  lines->Add("on NVMe",
             FormatBytes(host) + " of the pool and " +
                 FormatBytes(client::NvmeBytesOf(plan.spec, 0)) +
                 " of NVMe (two slots a chunk), where memserver has --nvme and all states spill");

  const uint64_t least = client::LeastHostBytesOf(plan.spec);
  if (least < host) {
    lines->Add("",
               FormatBytes(least) +
                   " of the pool at least: 16-bit weights are on that NVMe too, and are read in "
                   "each pass");
  }
}

void WriteAdapters(const RunPlan& plan, JsonWriter* json) {
  if (!plan.lora.on()) return;
  json->Key("adapters").BeginObject().Field("rank", plan.lora.rank).Field("alpha", plan.lora.alpha);
  json->Field("targets", TargetsText(plan.lora)).Field("params", plan.memory.trained_parameters);
  json->EndObject();

  json->Key("base").BeginObject();
  json->Field("frozen_chunks", static_cast<uint64_t>(plan.spec.frozen.size()));
  json->Field("frozen_bytes", plan.memory.frozen).EndObject();
}

// The fields of the experts of one block, or of all.
void WriteMoe(const MoeSizes& moe, JsonWriter* json) {
  json->Field("experts", moe.experts).Field("top_k", moe.top_k).Field("width", moe.width);
  json->Field("capacity", moe.capacity).Field("aux", moe.aux).Field("z", moe.z);
  json->Field("ep", moe.ep).Field("residual", moe.residual);
}

void WriteExperts(const GptShape& shape, JsonWriter* json) {
  if (!HasExperts(shape)) return;
  json->Key("moe").BeginObject();
  if (shape.moe_layers.empty()) {
    json->Field("every", shape.moe.every);
    WriteMoe(shape.moe, json);
    json->EndObject();
    return;
  }

  json->Key("layers").BeginArray();
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.moe_layers[layer].on()) continue;
    json->BeginObject().Field("layer", layer);
    WriteMoe(shape.moe_layers[layer], json);
    json->EndObject();
  }
  json->EndArray().EndObject();
}

void WritePool(const client::StateBytes& states, JsonWriter* json) {
  json->Key("pool").BeginObject();
  json->Field("master_bytes", states.master).Field("momentum_bytes", states.momentum);
  json->Field("variance_bytes", states.variance).Field("param16_bytes", states.param16);
  json->Field("gradient_bytes", states.gradient).Field("staging_bytes", states.staging);
  json->Field("records_bytes", states.records).Field("total_bytes", states.total()).EndObject();
}

void WriteStages(const StagePlan& stages, JsonWriter* json) {
  json->Key("pipeline").BeginObject().Key("layers").BeginArray();
  uint32_t first = 0;
  for (const uint32_t behind : stages.cuts.ends) {
    json->Uint(behind - first);
    first = behind;
  }

  json->EndArray().Key("ranks").BeginArray();
  for (uint32_t stage = 0; stage < stages.stages(); ++stage) json->Uint(stages.cuts.RankOf(stage));
  json->EndArray().Field("micro_batches", stages.micro_batches);
  json->Field("sums_bytes", stages.tail_bytes).Field("handed_in_bytes", stages.sum_bytes);
  json->EndObject();
}

void WriteRcache(const RunPlan& plan, JsonWriter* json) {
  json->Key("rcache").BeginObject();
  json->Field("bytes", plan.rcache.bytes).Field("blocks", plan.rcache.blocks);
  json->Field("block_bytes", plan.rcache.block_bytes);
  json->Field("resident_bytes", plan.rcache.resident_bytes);
  json->Field("fraction", plan.rcache.fraction());
  json->Field("resident_share", plan.memory.resident_share).EndObject();
  if (plan.stages) WriteStages(*plan.stages, json);

  if (plan.layout.world > 1) {
    json->Key("exchange").BeginObject();
    json->Field("several_machines_bytes", plan.memory.parts_bytes);
    json->Field("through_host_bytes", plan.memory.staging_bytes).EndObject();
  }
  if (plan.way) {
    json->Key("plan");
    WritePlanChoice(*plan.way, json);
  }

  if (plan.choice) {
    json->Key("choice");
    WriteChoice(*plan.choice, json);
  }
}

// Writes the bytes of states that are not in the pool.
void WriteStatesElsewhere(const RunPlan& plan, JsonWriter* json) {
  if (client::MaySpill(plan.spec)) {
    json->Key("states_on_nvme").BeginObject();
    json->Field("pool_bytes", RoundUp(client::HostStateBytesOf(plan.spec, 0).total(), kMiB));
    json->Field("nvme_bytes", RoundUp(client::NvmeBytesOf(plan.spec, 0), kMiB));
    json->Field("least_pool_bytes", RoundUp(client::LeastHostBytesOf(plan.spec), kMiB));
    json->EndObject();
  }

  if (plan.gpu_states.chunks > 0) {
    const uint64_t pool = client::HostStateBytesOf(plan.spec, client::kNoSpill).total();
    json->Key("states_on_gpu").BeginObject();
    json->Field("chunks", plan.gpu_states.chunks).Field("gpu_bytes", plan.gpu_states.gpu_bytes);
    json->Field("pool_bytes", RoundUp(pool + plan.memory.frozen, kMiB)).EndObject();
  }
}

void WriteGpu(const GpuEstimate& gpu, JsonWriter* json) {
  json->Key("gpu").BeginObject().Field("rank_bytes", gpu.rank_bytes).Field("ranks", gpu.sharers);
  if (gpu.states_bytes > 0) json->Field("states_bytes", gpu.states_bytes);
  if (gpu.server.bytes > 0) json->Field("server_bytes", gpu.server.bytes);
  json->Field("bytes", gpu.bytes());
  if (gpu.now)
    json->Field("total_bytes", gpu.now->total)
        .Field("used_bytes_with_a_context", gpu.now->total - gpu.now->free);
  json->EndObject();
}

}  // namespace

std::string DescribeGpuStates(const RunPlan& plan) {
  const GpuStatesPlan& on_gpu = plan.gpu_states;
  if (on_gpu.why.empty()) return {};
  if (on_gpu.chunks == 0) return "states    all on the host: " + on_gpu.why + "\n";

  const uint64_t less = client::StateBytesOf(plan.spec).total() -
                        client::HostStateBytesOf(plan.spec, client::kNoSpill).total();
  const std::string first =
      on_gpu.chunks == 1 ? "the first" : "the first " + std::to_string(on_gpu.chunks);
  return "states    those of " + first + " of " + std::to_string(plan.spec.chunks.size()) +
         " chunks on GPUs, up to " + FormatBytes(on_gpu.gpu_bytes) +
         " of each, which memserver takes (two slots a chunk): " + on_gpu.why +
         "; the pool needs " + FormatBytes(less) + " less\n";
}

std::string DescribePlan(const RunPlan& plan) {
  const client::StateBytes states = client::StateBytesOf(plan.spec);
  const uint64_t world = plan.layout.world;
  Lines lines;
  AddModel(plan, &lines);
  lines.AddText(DescribeGroups(plan));
  AddTiles(plan.shape, plan.layout.dtype, &lines);
  AddRcache(plan, &lines);
  AddPool(plan, states, &lines);
  AddNvme(plan, &lines);

  lines.Add("total", FormatBytes(states.total() + plan.memory.frozen + plan.rcache.bytes * world) +
                         " on this node for " + std::to_string(world) +
                         (world == 1 ? " rank" : " ranks") + ", without activations");
  return lines.Take();
}

std::string PlanJson(const RunPlan& plan, const GpuEstimate* gpu, const RunLimits* limits) {
  const MemoryEstimate& m = plan.memory;
  const client::StateBytes states = client::StateBytesOf(plan.spec);
  JsonWriter json;
  json.BeginObject().Field("preset", plan.shape.name).Field("params", m.parameters);
  json.Field("dtype", NameOf(plan.layout.dtype)).Field("ranks", plan.layout.world);
  json.Field("chunks", static_cast<uint64_t>(plan.layout.chunks.size()));
  json.Field("chunk_bytes", plan.rcache.block_bytes).Field("padding_bytes", m.padding_bytes);
  WriteExperts(plan.shape, &json);
  WriteGroups(plan, &json);
  WriteAdapters(plan, &json);

  json.Key("optimizer").BeginObject().Field("rule", NameOf(plan.spec.optimizer.rule));
  json.Field("states", NameOf(plan.spec.optimizer.states)).EndObject();
  WritePool(states, &json);
  WriteRcache(plan, &json);
  WriteStatesElsewhere(plan, &json);
  if (gpu != nullptr) WriteGpu(*gpu, &json);
  if (limits != nullptr) WriteLimits(*limits, &json.Key("limits"));

  // The --pool of a `memserver run` for this job alone.
  json.Field("pool_bytes", RoundUp(states.total() + m.frozen, kMiB))
      .Field("rcache_limit_bytes", RoundUp(plan.rcache.bytes, kMiB) * plan.layout.world);
  return json.EndObject().Take();
}

}  // namespace tidepool::trainer
