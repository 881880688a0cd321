#include "trainer/advice/pipeline_text.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/text/json_writer.h"
#include "base/text/plural.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kTimelineColumns = 88;
constexpr uint64_t kMasterBytes = 4;  // per parameter, as the paper counts the size

std::string Line(const std::string& label, const std::string& text) {
  return label + std::string(std::max<size_t>(label.size() + 1, 10) - label.size(), ' ') + text +
         "\n";
}

std::string PercentOf(double share) {
  return FormatFixed(100 * share, 0) + " %";
}

// "1, 19 x 2, 1": layers of the stages, in order.
std::string SizesText(const std::vector<Stage>& stages) {
  std::string text;
  for (size_t i = 0; i < stages.size();) {
    const uint32_t layers = stages[i].behind - stages[i].first;
    size_t same = i;

    while (same < stages.size() && stages[same].behind - stages[same].first == layers) ++same;
    text += text.empty() ? "" : ", ";
    if (same - i > 1) text += std::to_string(same - i) + " x ";
    text += std::to_string(layers);
    i = same;
  }
  return text;
}

std::string OrderText(const std::vector<uint32_t>& order) {
  std::string text;
  for (const uint32_t gpu : order) text += (text.empty() ? "" : " ") + std::to_string(gpu);
  return text;
}

std::string RatesText(const GpuTopology& topology) {
  std::string text;
  bool same = true;
  for (const RootComplex& complex : topology.complexes) {
    same = same && complex.bytes_per_ns == topology.complexes.front().bytes_per_ns;
    text += (text.empty() ? "" : ", ") + FormatFixed(complex.bytes_per_ns, 1);
  }
  if (same) text = FormatFixed(topology.complexes.front().bytes_per_ns, 1);
  return text + (same ? " GB/s a root complex" : " GB/s of the root complexes");
}

// How the rest of a GPU's memory is used.
std::string RestText(uint64_t stages, uint64_t gpus) {
  if (stages > gpus) return "and the next one's weights come into the rest";
  if (stages == gpus) return "and all stay on their GPUs";
  return "and all stay on their GPUs; " + Counted(gpus - stages, "GPU") +
         " would have nothing to do, as more stages take longer";
}

std::string StagesText(const PipelineAdvice& advice) {
  const PipelineWay& best = advice.best();
  uint64_t most = 0;
  for (const Stage& stage : best.task.stages)
    most = std::max({most, stage.forward_bytes, stage.backward_bytes});
  return "of " + SizesText(best.task.stages) + " layers; the largest takes " + FormatBytes(most) +
         " of the " + FormatBytes(advice.task.gpu_bytes) + " that are used of a GPU, " +
         RestText(best.task.stages.size(), advice.task.gpus);
}

// What the search proved about one partition.
std::string ProofText(const PipelineWay& way) {
  if (way.bytes_per_ns == 0) return FormatNs(way.partition.step_ns) + " in Mobius' program";
  const Partition& found = way.partition;
  const std::string text = FormatNs(found.step_ns) + " in Mobius' program at " +
                           FormatFixed(way.bytes_per_ns, 1) + " GB/s a GPU, ";
  if (found.proven()) return text + "and nothing is shorter there";
  const double above = static_cast<double>(found.step_ns) / static_cast<double>(found.bound_ns) - 1;
  return text + "at most " + FormatFixed(100 * above, 1) + " % above the shortest";
}

std::string MappingText(const PipelineWay& best) {
  const bool cross = best.cross_ns <= best.sequential_ns;
  const StageMapping& taken = cross ? best.cross : best.sequential;
  return "stages in turn on GPUs " + OrderText(taken.order) + ": contention " +
         FormatFixed(taken.contention, 2) + ", step " + FormatNs(best.schedule.step_ns) +
         (cross ? "; in their own order " : "; by cross mapping ") +
         FormatFixed((cross ? best.sequential : best.cross).contention, 2) + " and " +
         FormatNs(cross ? best.sequential_ns : best.cross_ns);
}

std::string BytesText(const PipelineAdvice& advice) {
  const PipelineSchedule& schedule = advice.best().schedule;
  const auto size =
      static_cast<double>(GptParameterCount(advice.question.model.shape) * kMasterBytes);
  const auto moved = static_cast<double>(schedule.bytes_up + schedule.bytes_down);
  return FormatBytes(schedule.bytes_up) + " to the GPUs, " + FormatBytes(schedule.bytes_down) +
         " from them, together " + FormatFixed(moved / size, 2) +
         " times the parameters in fp32 (Mobius, equation 1: 1.5 and activations, with 16-bit "
         "gradients)";
}

std::string SharedText(const PipelineAdvice& advice) {
  const SharedWay& shared = advice.shared;
  if (!shared.fits) return "each rank's own micro-batch does not fit into a GPU beside weights";
  const double times =
      static_cast<double>(shared.step_ns) / static_cast<double>(advice.best().schedule.step_ns);
  return "at least " + FormatNs(shared.step_ns) + ", " + FormatFixed(times, 2) +
         " times the pipeline's, with " + FormatBytes(shared.bytes_up) + " to the GPUs and " +
         FormatBytes(shared.bytes_down) +
         " from them: each rank computes its own micro-batches (copies hidden wherever they can)";
}

// One row of the timeline: the character of what fills most of each column, or a blank.
class TimelineRow {
 public:
  explicit TimelineRow(int64_t step_ns) : step_ns_(std::max<int64_t>(step_ns, 1)) {}

  void Add(int64_t start_ns, int64_t end_ns, char mark) {
    for (size_t column = 0; column < kTimelineColumns; ++column) {
      const int64_t from = BorderOf(column), behind = BorderOf(column + 1);
      const int64_t inside = std::min(end_ns, behind) - std::max(start_ns, from);
      if (inside <= 0) continue;
      if (inside > longest_[column]) {
        longest_[column] = inside;
        text_[column] = mark;
      }
    }
  }
  const std::string& text() const { return text_; }

 private:
  int64_t BorderOf(size_t column) const {
    return step_ns_ / static_cast<int64_t>(kTimelineColumns) * static_cast<int64_t>(column) +
           step_ns_ % static_cast<int64_t>(kTimelineColumns) * static_cast<int64_t>(column) /
               static_cast<int64_t>(kTimelineColumns);
  }

  const int64_t step_ns_;
  std::string text_ = std::string(kTimelineColumns, '.');
  std::vector<int64_t> longest_ = std::vector<int64_t>(kTimelineColumns, 0);
};

char MarkOf(const Copy& copy) {
  if (copy.kind == CopyKind::kWeights) return 'w';
  return copy.kind == CopyKind::kSums ? 'g' : 't';
}

std::string TimelineText(const PipelineWay& way) {
  const PipelineSchedule& schedule = way.schedule;
  std::string text =
      Line("timeline", "a column is " +
                           FormatNs(schedule.step_ns / static_cast<int64_t>(kTimelineColumns)) +
                           "; of stages the last digit, counted from 1: in forward 0 to 9, in "
                           "backward a (0) to j (9)");
  text += Line("",
               "of root complexes, up and down: w weights, t tensors between stages, g "
               "gradients");

  uint32_t gpu = 0;
  for (uint32_t complex = 0; complex < way.task.topology.complexes.size(); ++complex) {
    for (const uint32_t behind = gpu + way.task.topology.complexes[complex].gpus; gpu < behind;
         ++gpu) {
      TimelineRow row(schedule.step_ns);
      for (const ComputeSpan& span : schedule.computes) {
        if (span.gpu != gpu) continue;
        const auto digit = static_cast<char>((span.stage + 1) % 10);
        row.Add(span.start_ns, span.end_ns, static_cast<char>((span.backward ? 'a' : '0') + digit));
      }
      text += Line("GPU " + std::to_string(gpu), row.text());
    }

    for (const bool up : {true, false}) {
      TimelineRow row(schedule.step_ns);
      for (const CopySpan& span : schedule.spans) {
        const Copy& copy = schedule.copies[span.copy];
        if (copy.up() == up && way.task.topology.ComplexOf(copy.gpu) == complex)
          row.Add(span.start_ns, span.end_ns, MarkOf(copy));
      }
      text += Line((up ? "up " : "down ") + std::to_string(complex), row.text());
    }
  }
  return text;
}

std::string VerboseText(const PipelineAdvice& advice, const PipelineWords& words) {
  const PipelineLayer& layer = advice.task.layers.front();
  std::string text =
      Line("layers", Counted(DifferentLayers(advice.task.layers), "different layer") +
                         "; the first: " + FormatNs(layer.forward_ns) + " forward, " +
                         FormatNs(layer.backward_ns) + " backward, weights " +
                         FormatBytes(layer.weight_bytes) + ", its output " +
                         FormatBytes(layer.output_bytes));

  uint64_t tried = 0;
  for (const PipelineWay& way : advice.ways) {
    tried += way.partition.stages_tried;
    text += Line(text.find("\nways") == std::string::npos ? "ways" : "",
                 way.name + ": " + Counted(way.task.stages.size(), "stage") + " of " +
                     SizesText(way.task.stages) + " layers, step " +
                     FormatNs(way.schedule.step_ns) + "; " + ProofText(way));
  }
  return text + Line("search", FormatNs(words.search_ns) + " for all of this, " +
                                   std::to_string(tried) + " stages tried");
}

void WriteWay(const PipelineWay& way, JsonWriter* json) {
  json->BeginObject().Field("name", way.name).Field("step_ns", way.schedule.step_ns);
  json->Field("program_ns", way.partition.step_ns).Field("bound_ns", way.partition.bound_ns);
  json->Field("program_gb_per_s", way.bytes_per_ns).Field("proven", way.partition.proven());
  json->Field("cross_ns", way.cross_ns).Field("sequential_ns", way.sequential_ns);
  json->Key("layers").BeginArray();
  for (const Stage& stage : way.task.stages) json->Uint(stage.behind - stage.first);
  json->EndArray().EndObject();
}

}  // namespace

uint64_t ExchangeBytes(const PipelineAdvice& advice) {
  uint64_t bytes = 0;
  for (const Stage& stage : advice.best().task.stages)
    bytes += 2 * stage.output_bytes * advice.task.micro_batches;  // with their gradients
  return bytes;
}

std::string DescribePipeline(const PipelineAdvice& advice, const PipelineWords& words) {
  const PipelineWay& best = advice.best();
  const PipelineQuestion& asked = advice.question;
  const GpuTopology& topology = asked.machine.topology;
  std::string text =
      Line("pipeline", asked.model.shape.name + ": " + Counted(best.task.stages.size(), "stage") +
                           " of " + Counted(advice.task.layers.size(), "layer") + " on " +
                           Counted(topology.gpus(), "GPU") + " (" + topology.Name() + "), " +
                           std::to_string(asked.micro_batches) +
                           (asked.micro_batches == 1 ? " micro-batch of " : " micro-batches of ") +
                           Counted(asked.model.sequences, "sequence") + " of " +
                           Counted(asked.model.tokens, "token") + ", " + NameOf(asked.model.dtype));

  text += Line("machine", asked.machine.origin + "; " + RatesText(topology) + ", " +
                              FormatFixed(asked.machine.tflops, 1) + " TFLOPS and " +
                              FormatBytes(asked.machine.gpu_bytes) + " a GPU");
  text += Line("stages", StagesText(advice));
  text += Line("chosen", best.name + ", the shortest of " + Counted(advice.ways.size(), "way") +
                             " by its schedule; " + ProofText(best));
  text += Line("mapping", MappingText(best));
  text +=
      Line("step", FormatNs(best.schedule.step_ns) +
                       " until the last gradient is in host memory; GPUs compute nothing for " +
                       PercentOf(best.schedule.BubbleShare(topology.gpus())) + " of it (bubbles)");

  text += Line("bytes", BytesText(advice));
  text += Line("ZeRO-3", SharedText(advice));
  text += Line("host", FormatBytes(words.pool_bytes) + " of the pool for the states, " +
                           FormatBytes(ExchangeBytes(advice)) + " for tensors between stages");
  if (words.verbose) text += VerboseText(advice, words);
  return text + TimelineText(best);
}

std::string PipelineJson(const PipelineAdvice& advice, const PipelineWords& words) {
  const PipelineWay& best = advice.best();
  const PipelineQuestion& asked = advice.question;
  JsonWriter json;
  json.BeginObject().Field("preset", asked.model.shape.name).Field("origin", asked.machine.origin);
  json.Field("topology", asked.machine.topology.Name());
  json.Field("gpus", asked.machine.topology.gpus()).Field("micro_batches", asked.micro_batches);
  json.Field("gpu_bytes", advice.task.gpu_bytes).Field("pool_bytes", words.pool_bytes);
  json.Field("exchange_bytes", ExchangeBytes(advice));

  json.Key("order").BeginArray();
  for (const uint32_t gpu : best.task.order) json.Uint(gpu);
  json.EndArray().Field("contention", best.cross.contention);
  json.Field("sequential_contention", best.sequential.contention);
  json.Field("step_ns", best.schedule.step_ns);
  json.Field("bubble_share", best.schedule.BubbleShare(asked.machine.topology.gpus()));
  json.Field("bytes_up", best.schedule.bytes_up).Field("bytes_down", best.schedule.bytes_down);
  json.Key("zero3").BeginObject().Field("fits", advice.shared.fits);
  json.Field("step_ns_at_least", advice.shared.step_ns);
  json.Field("bytes_up", advice.shared.bytes_up).Field("bytes_down", advice.shared.bytes_down);
  json.EndObject();

  json.Key("ways").BeginArray();
  for (const PipelineWay& way : advice.ways) WriteWay(way, &json);
  return json.EndArray().EndObject().Take();
}

}  // namespace tidepool::trainer
